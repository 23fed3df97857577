// What this processor and operating system can run.
#pragma once

namespace octavo {

struct Features {
  bool avx2, fma, f16c, avx512, vnni, bf16, fp16;  // each only where the operating system saves the registers too
  bool amx;                                        // tiles, and products of bf16 on them
  bool tiles_allowed;                              // to this process, by the operating system, which was asked
};

const Features& features();

}  // namespace octavo
