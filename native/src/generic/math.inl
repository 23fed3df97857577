// Elementary functions over the vector vocabulary. Part of one instruction set's namespace.

static inline int smaller(int a, int b) { return a < b ? a : b; }
static inline int larger(int a, int b) { return a > b ? a : b; }

// e^x for x <= 88, within 2^-22 + |x| * 2^-24 of itself; exactly 1 for 0, and exactly 0 below -87.3, so that -inf gives
// 0; NaN for NaN, which `min` returns where it comes second. It is 2^n times 2^f, with n a whole number and |f| <= 1/2:
// f has a polynomial of degree 5 with the least largest error.
static inline f32 exp(f32 x) {
  const f32 per_ln2 = broadcast(1.44269504f), below_88 = min(broadcast(88.0f), x);
  const f32 n = round(mul(below_88, per_ln2));
  const f32 f = fma(below_88, per_ln2, sub(zero(), n));
  f32 p = broadcast(1.32764725e-3f);
  p = fma(p, f, broadcast(9.67554096e-3f));
  p = fma(p, f, broadcast(5.55071309e-2f));
  p = fma(p, f, broadcast(2.40221202e-1f));
  p = fma(p, f, broadcast(6.93146944e-1f));
  p = fma(p, f, broadcast(1.0f));
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
