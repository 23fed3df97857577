// What this processor and operating system can run.
#pragma once

namespace octavo {

struct Features {
  bool avx2, fma, f16c, avx512, vnni, bf16;  // each only where the operating system saves the registers too
};

const Features& features();

}  // namespace octavo
