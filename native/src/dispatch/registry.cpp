// Which kernels there are, in order of preference, and why one is refused.
#include <cstring>

#include "octavo/features.h"
#include "octavo/kernels.h"

namespace octavo {

#if defined(__x86_64__)
#if defined(OCTAVO_BUILDS_AMX)
namespace amx {
extern const Kernels table;
}
constexpr const Kernels* kAmx = &amx::table;
constexpr const char* kAmxNotBuilt = nullptr;
#else
constexpr const Kernels* kAmx = nullptr;
constexpr const char* kAmxNotBuilt = "the compiler that built this knew no AMX, or no AVX-512 FP16";
#endif
namespace avx512bf16 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
#endif
namespace scalar {
extern const Kernels table;
}

namespace {

#if defined(__x86_64__)
const char* needs_avx2() {
  const Features& f = features();
  return !f.avx2 ? "the processor or the system lacks AVX2" : !f.fma ? "no FMA" : !f.f16c ? "no F16C" : nullptr;
}
const char* needs_avx512() {
  const Features& f = features();
  if (const char* why = needs_avx2()) return why;
  return !f.avx512 ? "the processor or the system lacks AVX-512 F, BW, DQ, VL" : !f.vnni ? "no AVX-512 VNNI" : nullptr;
}
const char* needs_avx512bf16() {
  if (const char* why = needs_avx512()) return why;
  return features().bf16 ? nullptr : "no AVX-512 BF16";
}
const char* needs_amx() {
  if (const char* why = needs_avx512bf16()) return why;
  const Features& f = features();
  return !f.amx             ? "the processor or the system lacks AMX tiles of bf16"
         : !f.fp16          ? "no AVX-512 FP16"
         : !f.tiles_allowed ? "the system refuses AMX tiles to this process"
                            : kAmxNotBuilt;
}
#endif
const char* needs_nothing() { return nullptr; }

const Candidate kCandidates[] = {
#if defined(__x86_64__)
    {"amx", kAmx, needs_amx},
    {"avx512bf16", &avx512bf16::table, needs_avx512bf16},
    {"avx512", &avx512::table, needs_avx512},
    {"avx2", &avx2::table, needs_avx2},
#endif
    {"scalar", &scalar::table, needs_nothing},
};

}  // namespace

const Candidate* candidates(int* count) {
  *count = static_cast<int>(sizeof(kCandidates) / sizeof(kCandidates[0]));
  return kCandidates;
}

const Kernels* kernels(const char* name) {
  for (const Candidate& c : kCandidates)
    if (!std::strcmp(c.name, name)) return c.refusal() ? nullptr : c.kernels;
  return nullptr;
}

}  // namespace octavo
