// The vector vocabulary for AVX2, FMA and F16C: 16 lanes in two registers.
#pragma once
#include <immintrin.h>

#include <cstdint>

struct f32 {
  __m256 lo, hi;
};
struct i32 {
  __m256i lo, hi;
};
using bytes = i32;

inline constexpr int kMaxRows = 3;
inline constexpr int kByteZero = 128;  // dot4_byte works on q - 128: pairs of larger products would saturate 16 bits
inline constexpr int kScoreUnits = 1;
inline constexpr bool kBf16Activations = false;

static inline f32 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline f32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline f32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, f32 v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
static inline f32 add(f32 a, f32 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline f32 sub(f32 a, f32 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline f32 mul(f32 a, f32 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline f32 div(f32 a, f32 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static inline f32 max(f32 a, f32 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline f32 min(f32 a, f32 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline f32 abs(f32 a) {
  __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
static inline f32 fma(f32 a, f32 b, f32 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline f32 round(f32 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
static inline __m256 times_two_to(__m256 a, __m256 n) {
  __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(exponent));
}
static inline f32 times_two_to(f32 a, f32 n) { return {times_two_to(a.lo, n.lo), times_two_to(a.hi, n.hi)}; }
static inline f32 below(f32 a, f32 limit, f32 then, f32 otherwise) {
  return {_mm256_blendv_ps(otherwise.lo, then.lo, _mm256_cmp_ps(a.lo, limit.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(otherwise.hi, then.hi, _mm256_cmp_ps(a.hi, limit.hi, _CMP_LT_OQ))};
}
static inline f32 first_lanes(int n, f32 a, f32 b) {
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32(n);
  __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane));
  __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8))));
  return {_mm256_blendv_ps(b.lo, a.lo, lo), _mm256_blendv_ps(b.hi, a.hi, hi)};
}

static inline i32 zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline i32 broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline i32 add_int(i32 a, i32 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline f32 to_float(i32 v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
static inline i32 to_int(f32 v) { return {_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi)}; }
static inline void store_narrow(int8_t* p, i32 v) {  // values within -128 .. 127
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), 0xd8);
  __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

static inline f32 load_f16_halves(const void* a, const void* b) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(a))),
          _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(b)))};
}
static inline f32 load_f16(const void* p) { return load_f16_halves(p, static_cast<const char*>(p) + 16); }
static inline __m256 widen_bf16(const void* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline f32 load_bf16(const void* p) { return {widen_bf16(p), widen_bf16(static_cast<const char*>(p) + 16)}; }
static inline f32 load_halves(const float* a, const float* b) { return {_mm256_loadu_ps(a), _mm256_loadu_ps(b)}; }
static inline void store_f16(void* p, f32 v) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, mode));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<char*>(p) + 16), _mm256_cvtps_ph(v.hi, mode));
}

static inline bytes load_bytes_halves(const void* a, const void* b) {
  return {_mm256_loadu_si256(static_cast<const __m256i*>(a)), _mm256_loadu_si256(static_cast<const __m256i*>(b))};
}
static inline bytes load_bytes(const void* p) { return load_bytes_halves(p, static_cast<const char*>(p) + 32); }
static inline bytes low_nibbles(bytes v) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask)};
}
static inline bytes high_nibbles(bytes v) {
  return low_nibbles({_mm256_srli_epi16(v.lo, 4), _mm256_srli_epi16(v.hi, 4)});
}
static inline __m256i broadcast_four(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}
static inline i32 dot4_nibble(i32 acc, bytes weights, const int8_t* activations) {
  __m256i a = broadcast_four(activations), ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(weights.lo, a), ones)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(weights.hi, a), ones))};
}
static inline __m256i dot4_signed(__m256i weights, __m256i a) {  // |q - 128| * sign: at most 2 * 128 * 127 in 16 bits
  __m256i w = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
  __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
  return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
}
static inline i32 dot4_byte(i32 acc, bytes weights, const int8_t* activations) {
  __m256i a = broadcast_four(activations);
  return {_mm256_add_epi32(acc.lo, dot4_signed(weights.lo, a)), _mm256_add_epi32(acc.hi, dot4_signed(weights.hi, a))};
}

static inline bytes even_words(bytes v) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(v.lo, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(v.hi, 8), 8)};
}
static inline bytes odd_words(bytes v) { return {_mm256_srai_epi16(v.lo, 8), _mm256_srai_epi16(v.hi, 8)}; }
static inline i32 dot2_words(i32 acc, bytes words, uint32_t pair) {
  __m256i a = _mm256_set1_epi32(static_cast<int32_t>(pair));
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(words.lo, a)),
          _mm256_add_epi32(acc.hi, _mm256_madd_epi16(words.hi, a))};
}
static inline void store_words(void* p, i32 v) {  // values of 16 bits
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), 0xd8);
  _mm256_storeu_si256(static_cast<__m256i*>(p), words);
}

static inline i32 load_words(const void* p) {
  const __m256i words = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(words)),
          _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1))};
}
static inline i32 load_narrow(const void* p) {
  const __m128i narrow = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(narrow), _mm256_cvtepu8_epi32(_mm_srli_si128(narrow, 8))};
}
static inline void merge_lanes(__m256i* p, __m256i v, __m128i shift, __m256i mask) {
  const __m256i kept = _mm256_andnot_si256(mask, _mm256_loadu_si256(p));
  _mm256_storeu_si256(p, _mm256_or_si256(kept, _mm256_and_si256(mask, _mm256_sll_epi32(v, shift))));
}
static inline void merge_lanes(void* p, i32 v, int shift, uint32_t mask) {
  const __m128i by = _mm_cvtsi32_si128(shift);
  const __m256i bits = _mm256_set1_epi32(static_cast<int>(mask));
  merge_lanes(static_cast<__m256i*>(p), v.lo, by, bits);
  merge_lanes(static_cast<__m256i*>(p) + 1, v.hi, by, bits);
}

static inline f32 low_bf16(bytes v) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(v.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(v.hi, 16))};
}
static inline f32 high_bf16(bytes v) {
  __m256i mask = _mm256_set1_epi32(-65536);
  return {_mm256_castsi256_ps(_mm256_and_si256(v.lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(v.hi, mask))};
}
static inline bytes keep_low_bf16(bytes v) {
  __m256i mask = _mm256_set1_epi32(65535);
  return {_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask)};
}
static inline __m128i narrow_bf16(__m256 v) {  // to nearest, ties to even; NaN stays NaN
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), _mm256_castps_si256(nan));
  rounded = _mm256_srli_epi32(rounded, 16);
  __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
  return _mm256_castsi256_si128(words);
}
static inline void store_bf16(void* p, f32 v) {
  _mm_storeu_si128(static_cast<__m128i*>(p), narrow_bf16(v.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<char*>(p) + 16), narrow_bf16(v.hi));
}

static inline float reduce_max(f32 v) {
  __m256 half = _mm256_max_ps(v.lo, v.hi);
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}
static inline float reduce_add(f32 v) {  // the same tree as AVX-512's
  __m256 half = _mm256_add_ps(v.lo, v.hi);
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
static inline int32_t reduce_add_int(i32 v) {
  __m256i half = _mm256_add_epi32(v.lo, v.hi);
  __m128i quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  quarter = _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0xb1)));
}

static inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
static inline void prefetch_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
