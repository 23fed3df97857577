// Elementary functions over the vector vocabulary. Part of one instruction set's namespace.

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }

// e^x within 2^-22 of itself for x <= 88; exactly 1 for 0, and exactly 0 below -87.3, so that -inf gives 0; NaN for
// NaN, which `min` returns where it comes second. It is 2^n times e^r, with n a whole number and |r| <= ln(2) / 2:
// Cody-Waite reduction, whose first product is exact, and a polynomial of degree 5 with the least largest error.
static inline f32 exp(f32 x) {
  const f32 below_88 = min(broadcast(88.0f), x), n = round(mul(below_88, broadcast(1.44269504f)));
  f32 r = fma(n, broadcast(-0.693145752f), below_88);
  r = fma(n, broadcast(-1.42860677e-6f), r);
  f32 p = broadcast(0.00829765538f);
  p = fma(p, r, broadcast(0.0419153804f));
  p = fma(p, r, broadcast(0.166675742f));
  p = fma(p, r, broadcast(0.499988959f));
  p = fma(p, r, broadcast(0.999999659f));
  p = fma(p, r, broadcast(1.0f));
  return below(x, broadcast(-87.3f), zero(), times_two_to(p, n));
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
