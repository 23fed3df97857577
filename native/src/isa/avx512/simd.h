// The vector vocabulary for AVX-512 F, BW, DQ, VL and VNNI: 16 lanes in one register.
#pragma once
#include <immintrin.h>

#include <cstdint>

using f32 = __m512;
using i32 = __m512i;
using bytes = __m512i;  // 64 bytes: 16 lanes of 4 bytes, or of 2 bf16

inline constexpr int kMaxRows = 8;     // activation rows of one matmul tile
inline constexpr int kByteZero = 0;    // what dot4_byte has already subtracted from each unsigned byte
inline constexpr int kScoreUnits = 4;  // 16-key units scored at once

static inline f32 zero() { return _mm512_setzero_ps(); }
static inline f32 broadcast(float x) { return _mm512_set1_ps(x); }
static inline f32 load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, f32 v) { _mm512_storeu_ps(p, v); }
static inline f32 add(f32 a, f32 b) { return _mm512_add_ps(a, b); }
static inline f32 sub(f32 a, f32 b) { return _mm512_sub_ps(a, b); }
static inline f32 mul(f32 a, f32 b) { return _mm512_mul_ps(a, b); }
static inline f32 div(f32 a, f32 b) { return _mm512_div_ps(a, b); }
static inline f32 max(f32 a, f32 b) { return _mm512_max_ps(a, b); }
static inline f32 min(f32 a, f32 b) { return _mm512_min_ps(a, b); }
static inline f32 abs(f32 a) { return _mm512_abs_ps(a); }
static inline f32 fma(f32 a, f32 b, f32 c) { return _mm512_fmadd_ps(a, b, c); }
static inline f32 round(f32 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline f32 times_two_to(f32 a, f32 n) { return _mm512_scalef_ps(a, n); }
static inline f32 below(f32 a, f32 limit, f32 then, f32 otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, limit, _CMP_LT_OQ), otherwise, then);
}
// lanes 0 .. n-1 of a, the others of b
static inline f32 first_lanes(int n, f32 a, f32 b) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << n) - 1), b, a);
}

static inline i32 zero_int() { return _mm512_setzero_si512(); }
static inline i32 broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
static inline f32 to_float(i32 v) { return _mm512_cvtepi32_ps(v); }
static inline i32 to_int(f32 v) { return _mm512_cvtps_epi32(v); }  // to nearest, ties to even
static inline void store_narrow(int8_t* p, i32 v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
static inline i32 add_int(i32 a, i32 b) { return _mm512_add_epi32(a, b); }

static inline f32 load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
static inline f32 load_bf16(const void* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
// 8 lanes from a, then 8 from b
static inline f32 load_f16_halves(const void* a, const void* b) {
  __m128i lo = _mm_loadu_si128(static_cast<const __m128i*>(a)), hi = _mm_loadu_si128(static_cast<const __m128i*>(b));
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1));
}
static inline f32 load_halves(const float* a, const float* b) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
}
static inline void store_f16(void* p, f32 v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
static inline bytes load_bytes_halves(const void* a, const void* b) {
  __m256i lo = _mm256_loadu_si256(static_cast<const __m256i*>(a)),
          hi = _mm256_loadu_si256(static_cast<const __m256i*>(b));
  return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}
static inline bytes low_nibbles(bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
static inline bytes high_nibbles(bytes v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
// acc[lane] += sum over t of unsigned weights[lane][t] * signed activations[t]. The instruction broadcasts them itself,
// which GCC does not know: it would take an instruction and a register of their own.
static inline i32 dot4_byte(i32 acc, bytes weights, const int8_t* activations) {
  const auto& four = *reinterpret_cast<const int8_t (*)[4]>(activations);
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(weights), "m"(four));
  return acc;
}
static inline i32 dot4_nibble(i32 acc, bytes weights, const int8_t* activations) {
  return dot4_byte(acc, weights, activations);
}

// The signed bytes in even places of each lane as two words, and those in odd places.
static inline bytes even_words(bytes v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
static inline bytes odd_words(bytes v) { return _mm512_srai_epi16(v, 8); }
// acc[lane] += the products of two signed words with those of `pair`
static inline i32 dot2_words(i32 acc, bytes words, uint32_t pair) {
  return _mm512_dpwssd_epi32(acc, words, _mm512_set1_epi32(static_cast<int32_t>(pair)));
}
static inline void store_words(void* p, i32 v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(v));
}

// 16 words, or 16 bytes, as lanes; the bits of a lane that are in `mask` go into those at `p`.
static inline i32 load_words(const void* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
static inline i32 load_narrow(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
static inline void merge_lanes(void* p, i32 v, int shift, uint32_t mask) {
  const __m512i shifted = _mm512_sll_epi32(v, _mm_cvtsi32_si128(shift)), kept = _mm512_loadu_si512(p);
  _mm512_storeu_si512(p, _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(mask)), shifted, kept, 0xca));
}

static inline f32 low_bf16(bytes v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
static inline f32 high_bf16(bytes v) { return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(-65536))); }
static inline bytes keep_low_bf16(bytes v) { return _mm512_and_si512(v, _mm512_set1_epi32(65535)); }

static inline float reduce_max(f32 v) { return _mm512_reduce_max_ps(v); }
static inline float reduce_add(f32 v) {  // a fixed tree
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
// Several rows go through the tree together: lane r is row r's, of at most 8.
#define OCTAVO_HAS_ROWS 1
template <int R, f32 (*op)(f32, f32)>
static inline f32 reduce_rows(const f32* rows) {
  const auto row = [&](int r) { return rows[r < R ? r : R - 1]; };
  const auto halves = [](f32 a, f32 b) {
    return op(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const auto quarters = [](f32 a, f32 b) {
    return op(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  const f32 low = quarters(halves(row(0), row(1)), halves(row(2), row(3)));
  const f32 high = R <= 4 ? low : quarters(halves(row(4), row(5)), halves(row(6), row(7)));
  const f32 pairs = op(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
  const f32 ones = op(pairs, _mm512_movehdup_ps(pairs));
  const i32 order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(order, ones);
}
template <int R>
static inline f32 max_of_rows(const f32* rows) {
  return reduce_rows<R, max>(rows);
}
template <int R>
static inline f32 sum_of_rows(const f32* rows) {
  return reduce_rows<R, add>(rows);
}
static inline int32_t reduce_add_int(i32 v) { return _mm512_reduce_add_epi32(v); }

static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static inline void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

#ifndef OCTAVO_HAS_BF16
inline constexpr bool kBf16Activations = false;
static inline void store_bf16(void* p, f32 v) {  // to nearest, ties to even; NaN stays NaN
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
#endif
