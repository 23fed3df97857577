// 32 elements with one scale: what the quantised formats have in common.
#pragma once
#include "octavo/formats.h"

namespace octavo {

struct Group {
  uint8_t q[kGroup];
  float scale;
  float minimum;  // value = scale * (q - zero) + minimum; one of zero and minimum is 0
  int zero;
};

bool has_groups(Format format);
Group group_at(Format format, const uint8_t* row, int index);

}  // namespace octavo
