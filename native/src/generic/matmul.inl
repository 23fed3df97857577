// Matrix products over packed panels. Part of one instruction set's namespace.
//
// A tile is MR activation rows by one panel, or by NP panels of floats. Each lane is one output and adds up along K in
// order: inside a group of 32 exactly, in integers, then one multiply-add for the group. The tile's shape changes which
// outputs are computed together, never how one of them is computed.

using Tile = float (*)[kMaxRows][kPanel];  // [panels][MR][16]

// What a tile asks for of the weights that come later: some lines with each group, from `offset` bytes behind the
// beginning of its own panel on. Of 4-bit weights they are always as many as a group has.
struct Fetch {
  int lines;
  size_t offset;
};

constexpr int kLaterLines = 4;  // asked for with each group of a panel

// What a later stage reads, for panels that have time to ask for it: a few lines with each group, as a burst would have
// the processor wait for its own misses, and drop some.
struct Later {
  ReadLater range;
  int lines, saved = 0;  // with each group on average: kLaterLines, or none; what is left of them

  // Where the next `bytes` begin, for one panel; null where it is to ask for nothing. Of blocks that do not follow one
  // another in memory, what lies behind the first is asked for in vain.
  const uint8_t* take(size_t bytes) {
    if (range.first >= range.last || (saved += lines) < kLaterLines) return nullptr;
    saved -= kLaterLines;
    size_t block = range.first / range.block_bytes;
    const size_t offset = range.first % range.block_bytes;
    const uint8_t* at = range.base + static_cast<size_t>(range.blocks[block]) * range.block_bytes + offset;
    size_t run = range.block_bytes - offset;
    for (; run < bytes && range.first + run < range.last && range.blocks[block + 1] == range.blocks[block] + 1; ++block)
      run += range.block_bytes;
    range.first += run < bytes ? run : bytes;
    return at;
  }
};

// Of quants and constants; two groups that share a line of constants count it both.
static constexpr int lines_of_group(WeightKind kind, Constants constants) {
  return (quant_bytes(kind) + constant_bytes(constants) + 63) / 64;
}

// Memory has time for about seven lines while eight rows pass over a group; the group itself comes once.
static Later later_of(const MatmulArgs& a) {
  const int tiles = (a.rows + kMaxRows - 1) / kMaxRows;
  const int spare = (7 * a.rows / 8 - lines_of_group(a.weight->kind, a.weight->constants)) / tiles;
  return {a.later, larger(0, smaller(spare, kLaterLines))};
}

// What the bytes of a symmetric weight are too large by, times the activations; or what dot4_byte leaves out.
template <bool kNibbles, bool kAffine>
static inline i32 first_sum(const QuantisedGroup& x) {
  if (kAffine) return kNibbles || kByteZero == 0 ? zero_int() : broadcast_int(-x.less_128);
  if (kNibbles) return broadcast_int(x.less_8);
  return kByteZero == 0 ? broadcast_int(x.less_128) : zero_int();
}

template <WeightKind kKind, Constants kConstants, int MR, bool kLater>
static void quantised_tile(const MatmulArgs& a, const Fetch& fetch, const uint8_t* later, size_t stride, int row,
                           int panel, Tile out) {
  constexpr bool kNibbles = kKind == WeightKind::q4, kAffine = kConstants == Constants::scale_and_minimum;
  constexpr int kLines = lines_of_group(kKind, kConstants);
  const Weight& w = *a.weight;
  const int groups = w.k / kGroup;
  const QuantisedGroup* rows[MR];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r)
    rows[r] = reinterpret_cast<const QuantisedGroup*>(a.activations + static_cast<size_t>(row + r) * stride);
  const uint8_t* first = w.data + static_cast<size_t>(panel) * w.panel_bytes;
  const uint8_t* ahead = first + fetch.offset;
  const uint8_t* line = first;
  f32 acc[MR];
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) acc[r] = zero();
  for (int g = 0; g < groups; ++g) {
    // One or two rows are bound by memory alone: there the processor's own prefetcher does better.
    if (kNibbles && MR > 2) {
#pragma GCC unroll 8
      for (int j = 0; j < kLines; ++j) prefetch(ahead + 64 * j);
      ahead += 64 * kLines;
    } else if (!kNibbles) {
      for (int j = 0; j < fetch.lines; ++j, ahead += 64) prefetch(ahead);
    }
    if (kLater) {
#pragma GCC unroll 4
      for (int j = 0; j < kLaterLines; ++j) prefetch_l2(later + 64 * j);
      later += 64 * kLaterLines;
    }
    i32 sum[MR];
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) sum[r] = first_sum<kNibbles, kAffine>(rows[r][g]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if constexpr (kNibbles) {
        const bytes packed = load_bytes(line + 64 * j);
        const bytes low = low_nibbles(packed), high = high_nibbles(packed);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) sum[r] = dot4_nibble(sum[r], low, rows[r][g].q + 8 * j);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) sum[r] = dot4_nibble(sum[r], high, rows[r][g].q + 8 * j + 4);
      } else {
        const bytes low = load_bytes(line + 128 * j), high = load_bytes(line + 128 * j + 64);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) sum[r] = dot4_byte(sum[r], low, rows[r][g].q + 8 * j);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) sum[r] = dot4_byte(sum[r], high, rows[r][g].q + 8 * j + 4);
      }
    }
    const uint8_t* constants = line + to_constants(kKind, kConstants, g);
    line += to_next(kKind, kConstants, g);
    const f32 scale =
        kConstants == Constants::wide_scale ? load(reinterpret_cast<const float*>(constants)) : load_f16(constants);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) acc[r] = fma(to_float(sum[r]), mul(scale, broadcast(rows[r][g].scale)), acc[r]);
    if constexpr (kAffine) {
      const f32 minimum = load_f16(constants + 32);
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) acc[r] = fma(minimum, broadcast(rows[r][g].scaled_sum), acc[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) store(out[0][r], acc[r]);
}

static inline uint32_t pair_of(const uint8_t* row, int i) {
  uint32_t v;
  __builtin_memcpy(&v, row + 4 * static_cast<size_t>(i), 4);
  return v;
}

// One pair of K elements of bf16 weights against one activation row.
static inline f32 bf16_step(f32 acc, bytes weights, const uint8_t* row, int i) {
  if constexpr (kBf16Activations) return dot2_bf16(acc, weights, pair_of(row, i));
  const float* x = reinterpret_cast<const float*>(row) + 2 * i;
  return fma(high_bf16(weights), broadcast(x[1]), fma(low_bf16(weights), broadcast(x[0]), acc));
}

template <bool kFloat32, int MR, int NP>
static void plain_tile(const MatmulArgs& a, size_t stride, int row, int panel, Tile out) {
  const Weight& w = *a.weight;
  const uint8_t* first = w.data + static_cast<size_t>(panel) * w.panel_bytes;
  const uint8_t* rows = a.activations + static_cast<size_t>(row) * stride;
  f32 acc[NP][MR];
#pragma GCC unroll 8
  for (int p = 0; p < NP; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) acc[p][r] = zero();
  const int steps = kFloat32 ? w.k : w.k / 2;
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 4
    for (int p = 0; p < NP; ++p) {
      const uint8_t* line = first + static_cast<size_t>(p) * w.panel_bytes + 64 * static_cast<size_t>(i);
      if constexpr (kFloat32) {
        const f32 weights = load(reinterpret_cast<const float*>(line));
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r)
          acc[p][r] = fma(weights, broadcast(reinterpret_cast<const float*>(rows + r * stride)[i]), acc[p][r]);
      } else {
        const bytes weights = load_bytes(line);
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) acc[p][r] = bf16_step(acc[p][r], weights, rows + r * stride, i);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < NP; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) store(out[p][r], acc[p][r]);
}

template <int MR, bool kLater>
static void quantised_tile(const MatmulArgs& a, const Fetch& fetch, const uint8_t* later, size_t stride, int row,
                           int panel, Tile out) {
  constexpr WeightKind q4 = WeightKind::q4, q8 = WeightKind::q8;
  const bool nibbles = a.weight->kind == q4;
  switch (a.weight->constants) {
    case Constants::scale:
      return nibbles ? quantised_tile<q4, Constants::scale, MR, kLater>(a, fetch, later, stride, row, panel, out)
                     : quantised_tile<q8, Constants::scale, MR, kLater>(a, fetch, later, stride, row, panel, out);
    case Constants::wide_scale:
      return quantised_tile<q8, Constants::wide_scale, MR, kLater>(a, fetch, later, stride, row, panel, out);
    case Constants::scale_and_minimum:
      return nibbles ? quantised_tile<q4, Constants::scale_and_minimum, MR, kLater>(a, fetch, later, stride, row, panel,
                                                                                    out)
                     : quantised_tile<q8, Constants::scale_and_minimum, MR, kLater>(a, fetch, later, stride, row, panel,
                                                                                    out);
  }
}

// Few rows wait for their own weights.
template <int MR>
static void quantised_tile(const MatmulArgs& a, const Fetch& fetch, Later& later, size_t stride, int row, int panel,
                           Tile out) {
  if constexpr (MR == kMaxRows) {
    const size_t bytes = static_cast<size_t>(a.weight->k / kGroup * kLaterLines) * 64;
    if (const uint8_t* at = later.take(bytes)) return quantised_tile<MR, true>(a, fetch, at, stride, row, panel, out);
  }
  quantised_tile<MR, false>(a, fetch, nullptr, stride, row, panel, out);
}

template <int MR, int NP>
static void plain_tile(const MatmulArgs& a, size_t stride, int row, int panel, Tile out) {
  return a.weight->kind == WeightKind::f32 ? plain_tile<true, MR, NP>(a, stride, row, panel, out)
                                           : plain_tile<false, MR, NP>(a, stride, row, panel, out);
}

// `panels` (1 to 4) panels from `panel` on, `MR` rows from `row` on. Quantised weights are read one panel after the
// other: two or four streams at a time come from memory at half the speed of one. Of floats few rows share a pass over
// more panels, as one sum alone would wait for itself.
template <int MR>
static void tiles(const MatmulArgs& a, const Fetch& fetch, Later& later, size_t stride, int row, int panel, int panels,
                  Tile out) {
  int done = 0;
  if (is_quantised(a.weight->kind)) {
    for (; done < panels; ++done) quantised_tile<MR>(a, fetch, later, stride, row, panel + done, out + done);
    return;
  }
  if constexpr (MR == 1) {
    if (panels == 4) return plain_tile<1, 4>(a, stride, row, panel, out);
  }
  if constexpr (MR == 2 && kMaxRows > 2) {
    for (; done + 2 <= panels; done += 2) plain_tile<2, 2>(a, stride, row, panel + done, out + done);
  }
  for (; done < panels; ++done) plain_tile<MR, 1>(a, stride, row, panel + done, out + done);
}

static void any_tiles(const MatmulArgs& a, const Fetch& fetch, Later& later, size_t stride, int row, int rows,
                      int panel, int panels, Tile out) {
  switch (rows) {
    case 1:
      return tiles<1>(a, fetch, later, stride, row, panel, panels, out);
    case 2:
      return tiles<2>(a, fetch, later, stride, row, panel, panels, out);
    case 3:
      if constexpr (kMaxRows >= 3) return tiles<3>(a, fetch, later, stride, row, panel, panels, out);
      break;
    case 4:
      if constexpr (kMaxRows >= 4) return tiles<4>(a, fetch, later, stride, row, panel, panels, out);
      break;
    case 5:
      if constexpr (kMaxRows >= 5) return tiles<5>(a, fetch, later, stride, row, panel, panels, out);
      break;
    case 6:
      if constexpr (kMaxRows >= 6) return tiles<6>(a, fetch, later, stride, row, panel, panels, out);
      break;
    case 7:
      if constexpr (kMaxRows >= 7) return tiles<7>(a, fetch, later, stride, row, panel, panels, out);
      break;
    case 8:
      if constexpr (kMaxRows >= 8) return tiles<8>(a, fetch, later, stride, row, panel, panels, out);
      break;
  }
}

static void finish(const MatmulArgs& a, int row, int rows, int panel, int panels, const float (*in)[kMaxRows][kPanel]) {
  for (int r = 0; r < rows; ++r) {
    float* out = a.out + static_cast<size_t>(row + r) * a.out_stride;
    switch (a.epilogue) {
      case Epilogue::store:
        for (int p = 0; p < panels; ++p) store(out + (panel + p) * kPanel, load(in[p][r]));
        break;
      case Epilogue::add:
        for (int p = 0; p < panels; ++p) {
          float* at = out + (panel + p) * kPanel;
          store(at, add(load(at), load(in[p][r])));
        }
        break;
      case Epilogue::swiglu:
        for (int p = 0; p + 1 < panels; p += 2)
          store(out + (panel + p) / 2 * kPanel, mul(silu(load(in[p][r])), load(in[p + 1][r])));
        break;
    }
  }
}

// Where several tiles of rows pass over four panels of bytes, each asks for its share of the four behind: the first
// would wait for memory if it asked for all, and the others would have nothing to ask for. Of nibbles all is little.
static Fetch fetch_of(const MatmulArgs& a, int row) {
  const Weight& w = *a.weight;
  const int tiles = (a.rows + kMaxRows - 1) / kMaxRows;
  if (tiles == 1 || w.kind != WeightKind::q8)
    return {a.rows > 2 ? lines_of_group(w.kind, w.constants) : 0, w.panel_bytes};
  const int groups = w.k / kGroup, lines = (lines_of_group(w.kind, w.constants) + tiles - 1) / tiles;
  const size_t share = static_cast<size_t>(row / kMaxRows * lines * groups) * 64;
  return {share < w.panel_bytes ? lines : 0, 4 * w.panel_bytes + share};
}

static void matmul(const MatmulArgs& a, int first_panel, int last_panel) {
  const size_t stride = activation_stride(a.weight->kind, a.weight->k);
  alignas(64) float results[4][kMaxRows][kPanel];
  Later later = later_of(a);
  for (int panel = first_panel; panel < last_panel; panel += 4) {
    const int panels = smaller(4, last_panel - panel);
    for (int row = 0; row < a.rows; row += kMaxRows) {
      const int rows = smaller(kMaxRows, a.rows - row);
      const Fetch fetch = fetch_of(a, row);
      any_tiles(a, fetch, later, stride, row, rows, panel, panels, results);
      finish(a, row, rows, panel, panels, results);
    }
  }
}
