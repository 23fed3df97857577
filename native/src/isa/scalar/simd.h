// The vector vocabulary in plain C++: an honest oracle for any machine, not a performance tier.
#pragma once
#include <cstdint>

struct f32 {
  float lane[16];
};
struct i32 {
  int32_t lane[16];
};
struct bytes {
  uint8_t lane[64];
};

inline constexpr int kMaxRows = 2;
inline constexpr int kByteZero = 0;
inline constexpr int kScoreUnits = 1;
inline constexpr bool kBf16Activations = false;

#define OCTAVO_EACH for (int i = 0; i < 16; ++i)
#define OCTAVO_LANES(expression)      \
  f32 r;                              \
  OCTAVO_EACH r.lane[i] = expression; \
  return r
static inline float bits_float(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
static inline uint32_t float_bits(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}
static inline uint32_t load_u16(const void* p, int i) {
  uint16_t v;
  __builtin_memcpy(&v, static_cast<const char*>(p) + 2 * i, 2);
  return v;
}
static inline float f16_to_float(uint32_t h) {
  uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return bits_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x0400u) return bits_float(sign | ((rest << 13) + 0x38000000u));
  float subnormal = static_cast<float>(rest) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}
static inline uint32_t float_to_f16(float f) {  // to nearest, ties to even
  uint32_t bits = float_bits(f), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return sign | 0x7e00u;
  if (rest >= 0x477ff000u) return sign | 0x7c00u;
  if (rest < 0x38800000u) return sign | (float_bits(bits_float(rest) + 0.5f) - 0x3f000000u);
  return sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13;
}

static inline f32 broadcast(float x) { OCTAVO_LANES(x); }
static inline f32 zero() { return broadcast(0); }
static inline f32 load(const float* p) { OCTAVO_LANES(p[i]); }
static inline void store(float* p, f32 v) { OCTAVO_EACH p[i] = v.lane[i]; }
static inline f32 add(f32 a, f32 b) { OCTAVO_LANES(a.lane[i] + b.lane[i]); }
static inline f32 sub(f32 a, f32 b) { OCTAVO_LANES(a.lane[i] - b.lane[i]); }
static inline f32 mul(f32 a, f32 b) { OCTAVO_LANES(a.lane[i] * b.lane[i]); }
static inline f32 div(f32 a, f32 b) { OCTAVO_LANES(a.lane[i] / b.lane[i]); }
static inline f32 max(f32 a, f32 b) { OCTAVO_LANES(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); }
static inline f32 min(f32 a, f32 b) { OCTAVO_LANES(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); }
static inline f32 abs(f32 a) { OCTAVO_LANES(a.lane[i] < 0 ? -a.lane[i] : a.lane[i]); }
static inline f32 fma(f32 a, f32 b, f32 c) { OCTAVO_LANES(a.lane[i] * b.lane[i] + c.lane[i]); }
static inline f32 round(f32 a) { OCTAVO_LANES(__builtin_rintf(a.lane[i])); }
static inline f32 times_two_to(f32 a, f32 n) {
  OCTAVO_LANES(a.lane[i] * bits_float(static_cast<uint32_t>(static_cast<int32_t>(n.lane[i]) + 127) << 23));
}
static inline f32 below(f32 a, f32 limit, f32 then, f32 otherwise) {
  OCTAVO_LANES(a.lane[i] < limit.lane[i] ? then.lane[i] : otherwise.lane[i]);
}
static inline f32 first_lanes(int n, f32 a, f32 b) { OCTAVO_LANES(i < n ? a.lane[i] : b.lane[i]); }

static inline i32 broadcast_int(int32_t x) {
  i32 r;
  OCTAVO_EACH r.lane[i] = x;
  return r;
}
static inline i32 zero_int() { return broadcast_int(0); }
static inline i32 add_int(i32 a, i32 b) {
  OCTAVO_EACH a.lane[i] += b.lane[i];
  return a;
}
static inline f32 to_float(i32 v) { OCTAVO_LANES(static_cast<float>(v.lane[i])); }
static inline i32 to_int(f32 v) {
  i32 r;
  OCTAVO_EACH r.lane[i] = static_cast<int32_t>(__builtin_rintf(v.lane[i]));
  return r;
}
static inline void store_narrow(int8_t* p, i32 v) { OCTAVO_EACH p[i] = static_cast<int8_t>(v.lane[i]); }

static inline f32 load_f16(const void* p) { OCTAVO_LANES(f16_to_float(load_u16(p, i))); }
static inline f32 load_f16_halves(const void* a, const void* b) {
  OCTAVO_LANES(f16_to_float(i < 8 ? load_u16(a, i) : load_u16(b, i - 8)));
}
static inline f32 load_bf16(const void* p) { OCTAVO_LANES(bits_float(load_u16(p, i) << 16)); }
static inline f32 load_halves(const float* a, const float* b) { OCTAVO_LANES(i < 8 ? a[i] : b[i - 8]); }
static inline void store_u16(void* p, int i, uint32_t v) {
  uint16_t half = static_cast<uint16_t>(v);
  __builtin_memcpy(static_cast<char*>(p) + 2 * i, &half, 2);
}
static inline void store_f16(void* p, f32 v) { OCTAVO_EACH store_u16(p, i, float_to_f16(v.lane[i])); }
static inline void store_bf16(void* p, f32 v) {  // to nearest, ties to even; NaN stays NaN
  OCTAVO_EACH {
    uint32_t bits = float_bits(v.lane[i]);
    uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
    store_u16(p, i, (v.lane[i] != v.lane[i] ? 0x7fc00000u : rounded) >> 16);
  }
}

static inline bytes load_bytes(const void* p) {
  bytes r;
  __builtin_memcpy(r.lane, p, 64);
  return r;
}
static inline bytes load_bytes_halves(const void* a, const void* b) {
  bytes r;
  __builtin_memcpy(r.lane, a, 32);
  __builtin_memcpy(r.lane + 32, b, 32);
  return r;
}
static inline bytes low_nibbles(bytes v) {
  for (int i = 0; i < 64; ++i) v.lane[i] &= 15;
  return v;
}
static inline bytes high_nibbles(bytes v) {
  for (int i = 0; i < 64; ++i) v.lane[i] >>= 4;
  return v;
}
static inline i32 dot4_byte(i32 acc, bytes weights, const int8_t* activations) {
  OCTAVO_EACH for (int t = 0; t < 4; ++t) acc.lane[i] += weights.lane[4 * i + t] * activations[t];
  return acc;
}
static inline i32 dot4_nibble(i32 acc, bytes weights, const int8_t* activations) {
  return dot4_byte(acc, weights, activations);
}

// The signed bytes in even places of each lane as two words, and those in odd places.
static inline bytes even_words(bytes v) {
  for (int i = 0; i < 64; i += 2) v.lane[i + 1] = v.lane[i] & 0x80 ? 0xff : 0;
  return v;
}
static inline bytes odd_words(bytes v) {
  for (int i = 0; i < 64; i += 2) v.lane[i] = v.lane[i + 1];
  return even_words(v);
}
// acc[lane] += the products of two signed words with those of `pair`
static inline i32 dot2_words(i32 acc, bytes words, uint32_t pair) {
  int16_t w[32], a[2];
  __builtin_memcpy(w, words.lane, 64);
  __builtin_memcpy(a, &pair, 4);
  OCTAVO_EACH for (int t = 0; t < 2; ++t) acc.lane[i] += w[2 * i + t] * a[t];
  return acc;
}
static inline void store_words(void* p, i32 v) { OCTAVO_EACH store_u16(p, i, static_cast<uint32_t>(v.lane[i])); }

static inline i32 load_words(const void* p) {
  i32 r;
  OCTAVO_EACH r.lane[i] = static_cast<int32_t>(load_u16(p, i));
  return r;
}
static inline i32 load_narrow(const void* p) {
  i32 r;
  OCTAVO_EACH r.lane[i] = static_cast<const uint8_t*>(p)[i];
  return r;
}
static inline void merge_lanes(void* p, i32 v, int shift, uint32_t mask) {
  uint32_t lanes[16];
  __builtin_memcpy(lanes, p, 64);
  OCTAVO_EACH lanes[i] = (lanes[i] & ~mask) | (static_cast<uint32_t>(v.lane[i]) << shift & mask);
  __builtin_memcpy(p, lanes, 64);
}

static inline f32 low_bf16(bytes v) { OCTAVO_LANES(bits_float(load_u16(v.lane, 2 * i) << 16)); }
static inline f32 high_bf16(bytes v) { OCTAVO_LANES(bits_float(load_u16(v.lane, 2 * i + 1) << 16)); }
static inline bytes keep_low_bf16(bytes v) {
  OCTAVO_EACH v.lane[4 * i + 2] = v.lane[4 * i + 3] = 0;
  return v;
}
static inline float reduce_max(f32 v) {
  float m = v.lane[0];
  OCTAVO_EACH m = v.lane[i] > m ? v.lane[i] : m;
  return m;
}
static inline float reduce_add(f32 v) {  // the same tree as the other instruction sets'
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) v.lane[i] += v.lane[i + half];
  return v.lane[0];
}
static inline int32_t reduce_add_int(i32 v) {
  int32_t sum = 0;
  OCTAVO_EACH sum += v.lane[i];
  return sum;
}

static inline void prefetch(const void* p) { __builtin_prefetch(p); }
static inline void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
#undef OCTAVO_LANES
