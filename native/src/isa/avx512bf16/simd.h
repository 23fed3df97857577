// AVX-512 with BF16: the vocabulary of avx512, and pairs of bf16 multiplied in one instruction.
#pragma once
#define OCTAVO_HAS_BF16 1
#include "../avx512/simd.h"

inline constexpr bool kBf16Activations = true;
static inline f32 dot2_bf16(f32 acc, bytes pairs, uint32_t pair) {
  return _mm512_dpbf16_ps(acc, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32(static_cast<int32_t>(pair)));
}
static inline void store_bf16(void* p, f32 v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v));
}
