// The CPU probe. Compiled without any instruction-set flag: it runs before anything is known.
#include "octavo/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)
unsigned saved_registers() {  // XCR0: what the operating system saves on a context switch (Intel SDM, XGETBV)
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Linux has room for tiles in a thread's state only where a process asks for it, once, before its first use of them
// (Documentation/arch/x86/xstate.rst). It refuses where it knows no tiles.
bool ask_for_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Features probe() {
  Features f{};
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return f;
  const unsigned saved = saved_registers();
  const bool ymm = (saved & 0x6) == 0x6, zmm = ymm && (saved & 0xe0) == 0xe0, tiles = (saved & 0x60000) == 0x60000;
  f.fma = ymm && (c & bit_FMA);
  f.f16c = ymm && (c & bit_F16C);
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  f.avx2 = ymm && (b & bit_AVX2);
  f.avx512 = zmm && (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512DQ) && (b & bit_AVX512VL);
  f.vnni = f.avx512 && (c & bit_AVX512VNNI);
  constexpr unsigned kAmxBf16 = 1u << 22, kFp16 = 1u << 23, kAmxTile = 1u << 24;  // older compilers know no names
  f.fp16 = f.avx512 && (d & kFp16);
  f.amx = tiles && (d & kAmxTile) && (d & kAmxBf16);
  f.tiles_allowed = f.amx && ask_for_tiles();
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) f.bf16 = f.avx512 && (a & bit_AVX512BF16);
  return f;
}
#else
Features probe() { return {}; }
#endif

}  // namespace

const Features& features() {
  static const Features found = probe();
  return found;
}

}  // namespace octavo
