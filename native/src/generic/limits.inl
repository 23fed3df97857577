// What no kernel of this instruction set can beat: reading memory in order, and dot products from registers.
// Part of one instruction set's namespace.

// The sum of what was read: whoever needs it needs all of it to be read. `size` is a multiple of 512.
static float read_all(const uint8_t* data, size_t size) {
  f32 sums[8];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) sums[j] = zero();
  for (size_t at = 0; at < size; at += 512)
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] = add(sums[j], load(reinterpret_cast<const float*>(data + at) + 16 * j));
  f32 total = zero();
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) total = add(total, sums[j]);
  return reduce_add(total);
}

inline constexpr int kSpinPanels = 2, kSpinLength = 16;

// As many sums as a matmul tile has rows, for each of two panels: all loops over them are unrolled, or GCC keeps them
// in memory and finds half the peak. Weights stay in registers; activations are broadcast from the nearest cache, as in
// a tile, and change from round to round, so that no product can be kept.
template <class Sum, class Dot>
static inline void spin(int rounds, Sum (&sums)[kSpinPanels][kMaxRows], const Dot& dot) {
  for (int i = 0; i < rounds; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < kMaxRows; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < kSpinPanels; ++p) sums[p][r] = dot(sums[p][r], p, i % kSpinLength + r);
}

static float spin_int8(WeightKind kind, int rounds, const bytes (&weights)[kSpinPanels], const int8_t* x) {
  i32 sums[kSpinPanels][kMaxRows];
#pragma GCC unroll 2
  for (auto& panel : sums)
#pragma GCC unroll 8
    for (i32& sum : panel) sum = zero_int();
  if (kind == WeightKind::q4)
    spin(rounds, sums, [&](i32 sum, int p, int i) { return dot4_nibble(sum, weights[p], x + 4 * i); });
  else
    spin(rounds, sums, [&](i32 sum, int p, int i) { return dot4_byte(sum, weights[p], x + 4 * i); });
  i32 total = zero_int();
#pragma GCC unroll 2
  for (const auto& panel : sums)
#pragma GCC unroll 8
    for (const i32& sum : panel) total = add_int(total, sum);
  return static_cast<float>(reduce_add_int(total));
}

static float spin_float(WeightKind kind, int rounds, const bytes (&weights)[kSpinPanels], const uint8_t* x) {
  f32 sums[kSpinPanels][kMaxRows];
#pragma GCC unroll 2
  for (auto& panel : sums)
#pragma GCC unroll 8
    for (f32& sum : panel) sum = zero();
  if (kind == WeightKind::bf16) {
    spin(rounds, sums, [&](f32 sum, int p, int i) { return bf16_step(sum, weights[p], x, i); });
  } else {
    const float* floats = reinterpret_cast<const float*>(x);
    const f32 lanes[kSpinPanels] = {load(floats), load(floats + 16)};
    spin(rounds, sums, [&](f32 sum, int p, int i) { return fma(lanes[p], broadcast(floats[i]), sum); });
  }
  f32 total = zero();
#pragma GCC unroll 2
  for (const auto& panel : sums)
#pragma GCC unroll 8
    for (const f32& sum : panel) total = add(total, sum);
  return reduce_add(total);
}

// `rounds` times the dot products of a tile. Returns how many operations that were.
static double spin_dots(WeightKind kind, int rounds, float* result) {
  alignas(64) uint8_t ones[8 * (kSpinLength + kMaxRows)];
  alignas(64) uint8_t memory[kSpinPanels][64];
  const bool is_float = kind == WeightKind::bf16 || kind == WeightKind::f32;
  const float one = 1.0f;
  for (size_t i = 0; i < sizeof(ones); i += 4) {
    if (is_float)
      __builtin_memcpy(ones + i, &one, 4);
    else
      __builtin_memset(ones + i, 1, 4);
  }
  __builtin_memset(memory, is_float ? 0 : 1, sizeof(memory));
  asm volatile("" : : "r"(ones), "r"(memory) : "memory");  // or the compiler knows the sums beforehand
  const bytes weights[kSpinPanels] = {load_bytes(memory[0]), load_bytes(memory[1])};
  *result = is_float ? spin_float(kind, rounds, weights, ones)
                     : spin_int8(kind, rounds, weights, reinterpret_cast<const int8_t*>(ones));
  const int products = is_float ? (kind == WeightKind::bf16 ? 2 : 1) : 4;
  return 2.0 * products * kPanel * kSpinPanels * kMaxRows * rounds;
}
