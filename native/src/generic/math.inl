// Elementary functions over the vector vocabulary. Part of one instruction set's namespace.

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }

// e^x within 2 ulp for -87.3 <= x <= 88; exactly 0 below, so that -inf gives 0.
// Cody-Waite reduction by ln 2, then a degree-6 Taylor polynomial on |r| <= ln(2)/2.
static inline f32 exp(f32 x) {
  const f32 lowest = broadcast(-87.3f);
  f32 clamped = min(max(x, lowest), broadcast(88.0f));
  f32 n = round(mul(clamped, broadcast(1.44269504f)));
  f32 r = fma(n, broadcast(-0.693145752f), clamped);
  r = fma(n, broadcast(-1.42860677e-6f), r);
  f32 p = broadcast(1.0f / 720);
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return below(x, lowest, zero(), times_two_to(p, n));
}

static inline float exp_one(float x) {
  float lanes[16];
  store(lanes, exp(broadcast(x)));
  return lanes[0];
}

static inline f32 silu(f32 x) { return div(x, add(broadcast(1.0f), exp(sub(zero(), x)))); }

#ifndef OCTAVO_HAS_ROWS
// Lane r: the highest lane of row r, or their sum by the tree of reduce_add.
template <int R>
static inline f32 max_of_rows(const f32* rows) {
  alignas(64) float lanes[16] = {};
  for (int r = 0; r < R; ++r) lanes[r] = reduce_max(rows[r]);
  return load(lanes);
}
template <int R>
static inline f32 sum_of_rows(const f32* rows) {
  alignas(64) float lanes[16] = {};
  for (int r = 0; r < R; ++r) lanes[r] = reduce_add(rows[r]);
  return load(lanes);
}
#endif

#ifndef OCTAVO_HAS_BF16
// Without BF16 instructions a pair of bf16 costs two multiply-adds, low element first.
static inline float upper_half(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
static inline f32 dot2_bf16(f32 acc, bytes pairs, uint32_t pair) {
  acc = fma(low_bf16(pairs), broadcast(upper_half(pair << 16)), acc);
  return fma(high_bf16(pairs), broadcast(upper_half(pair & 0xffff0000u)), acc);
}
#endif
