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

// kGroup floats with the least squared error that a cheap search finds. Throw std::invalid_argument for one that is not
// finite.
Group rounded_to_bytes(const float* x);    // symmetric: its zero is 128
Group rounded_to_nibbles(const float* x);  // with a minimum; scale and minimum are 16-bit floats already

}  // namespace octavo
