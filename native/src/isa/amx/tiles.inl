// Matrix products on tiles. Part of the namespace of amx.
//
// A sum is made of products of bf16 pairs, in the order of K, in one tile of 16 rows by 16 columns: the same for any
// number of rows. Weights of 4 and 8 bits are widened to bf16 first, into scratch that the caches hold; all rows pass
// over it. Widening and multiplying take turns of some hundred cycles: while tiles are busy, and 130 cycles longer,
// vectors are multiplied at half their speed; and after a thousand cycles without work tiles need 800 to wake up.
//
// A widened weight is scale * q + minimum in half precision, then rounded to the 8 bits of bf16. So that no weight of a
// matrix leaves the range of half precision, they are all multiplied with a power of two first (its gain), and what the
// exponents of both formats differ by stays in the sums: `unscale` undoes both.

inline constexpr int kTileRows = 16, kLine = 64, kTileBytes = kTileRows * kLine;
inline constexpr int kSlots = 128;      // tiles of widened weights in the scratch
inline constexpr int kTurn = 12;        // of them that are widened in a turn
inline constexpr int kSumRows = 512;    // rows that pass over one widening
inline constexpr int kHalfToBf16 = 16;  // exponents of widened weights are that much too small

// Rows are bf16, zeros up to whole groups; an odd number of lines, so that 16 rows are spread over the cache's sets.
// Where weights are widened, elements 0, 2, 1, 3 of each four: nibbles and bytes widen to pairs in that order.
static size_t tiled_stride(WeightKind kind, int k) {
  if (kind == WeightKind::f32) return activation_stride(kind, k);
  return static_cast<size_t>((k + kGroup - 1) / kGroup | 1) * kLine;
}

// 16 elements of a row, in their order.
static inline void store_elements(WeightKind kind, uint8_t* at, f32 v) {
  const i32 fours = _mm512_set_epi32(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  store_bf16(at, kind == WeightKind::bf16 ? v : _mm512_permutexvar_ps(fours, v));
}

static void tiled_prepare(WeightKind kind, const float* x, const float* norm, float eps, int k, uint8_t* row) {
  if (kind == WeightKind::f32) return prepare(kind, x, norm, eps, k, row);
  const f32 scale = broadcast(norm ? 1.0f / __builtin_sqrtf(mean_square(x, k) + eps) : 1.0f);
  for (int i = 0; i < k; i += 16) {
    f32 v = load(x + i);
    if (norm) v = mul(mul(v, scale), load(norm + i));
    store_elements(kind, row + 2 * i, v);
  }
  if (k % kGroup) __builtin_memset(row + 2 * k, 0, 2 * kPanel);
}

// All that pass over the same weights should fit the second cache: they are read again for every few panels.
static int tiled_rows_of_part(WeightKind kind, int k) {
  return larger(kTileRows, static_cast<int>((768 << 10) / tiled_stride(kind, k)));
}

static inline int num_groups(const Weight& w) { return (w.k + kGroup - 1) / kGroup; }

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

static constexpr TileConfig whole_tiles() {
  TileConfig config;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = kLine;
    config.rows[t] = kTileRows;
  }
  return config;
}

// Shapes tiles, unless they have these shapes: changing costs a thousand cycles and more, asking fifteen. Nobody gives
// tiles back after a product, as the next one needs them: what a thread has in them is saved when the system takes it
// off its core, 8 KB that are nothing beside a step.
static void configure(const TileConfig& wanted) {
  TileConfig now;
  _tile_storeconfig(&now);
  if (_mm512_cmpneq_epi8_mask(_mm512_load_si512(&now), _mm512_load_si512(&wanted))) _tile_loadconfig(&wanted);
}

static void configure_products() {
  static constexpr TileConfig config = whole_tiles();
  configure(config);
}

// Before tiles are loaded from what was just stored: their loads do not tell the compiler that they read memory.
static inline void finish_stores() { asm volatile("" : : : "memory"); }

// ---- widening ----

struct Gain {
  float of_weights, of_sums;
};

// Brings the largest weight of a matrix to 2^14 .. 2^15, as far as half precision has such a factor.
static Gain gain_of(float largest) {
  int exponent = 0;
  if (largest > 0) {
    uint32_t bits;
    __builtin_memcpy(&bits, &largest, 4);
    exponent = 127 + 14 - static_cast<int>(bits >> 23);
  }
  exponent = larger(-14, smaller(15, exponent));
  return {__builtin_ldexpf(1.0f, exponent), __builtin_ldexpf(1.0f, kHalfToBf16 - exponent)};
}

// Of 16 columns, each twice: an element is scale * q + minimum.
struct Twice {
  __m512h scale, minimum;
};

template <Constants kConstants>
static inline Twice constants_of(const uint8_t* at, int zero_point, float gain) {
  const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,
                                         4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  if constexpr (kConstants == Constants::scale_and_minimum) {
    const __m512h factor = _mm512_set1_ph(static_cast<_Float16>(gain));
    const __m512i halves = _mm512_loadu_si512(at), behind = _mm512_add_epi16(twice, _mm512_set1_epi16(16));
    return {_mm512_mul_ph(_mm512_castsi512_ph(_mm512_permutexvar_epi16(twice, halves)), factor),
            _mm512_mul_ph(_mm512_castsi512_ph(_mm512_permutexvar_epi16(behind, halves)), factor)};
  } else {
    const f32 own = kConstants == Constants::scale ? load_f16(at) : load(reinterpret_cast<const float*>(at));
    const __m512i halves = _mm512_castsi256_si512(
        _mm512_cvtps_ph(mul(own, broadcast(gain)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    const __m512h scale = _mm512_castsi512_ph(_mm512_permutexvar_epi16(twice, halves));
    return {scale, _mm512_mul_ph(scale, _mm512_set1_ph(static_cast<_Float16>(-zero_point)))};
  }
}

// Half precision to bf16 with exponents that are kHalfToBf16 too small. What half precision holds as zero, or without a
// leading one, becomes 2^-15 or a bit more: nothing beside 2^14.
static inline __m512i to_bf16(__m512h v) {
  const __m512i shifted = _mm512_mulhrs_epi16(_mm512_castph_si512(v), _mm512_set1_epi16(1 << 12));  // by 3, rounded
  const __m512i sign_and_rest = _mm512_set1_epi16(static_cast<short>(0x8fff)), exponent = _mm512_set1_epi16(0x3000);
  return _mm512_ternarylogic_epi32(shifted, sign_and_rest, exponent, 0xea);  // (a & b) | c
}

static inline void widen_line(__m512i q, __m512h scale, __m512h minimum, uint8_t* out) {
  _mm512_store_si512(out, to_bf16(_mm512_fmadd_ph(_mm512_cvtepu16_ph(q), scale, minimum)));
}

static inline __m512i under(int mask, __m512i words) {
  return _mm512_and_si512(words, _mm512_set1_epi16(static_cast<short>(mask)));
}

// Group `g` of one panel -> 16 lines: line i has elements 2i and 2i + 1 of each column, as the rows are ordered.
template <WeightKind kKind, Constants kConstants>
static inline void widen(const uint8_t* panel, int g, int zero_point, float gain, uint8_t* out) {
  const uint8_t* group = panel + quants_at(kKind, kConstants, g);
  const auto [scale, minimum] = constants_of<kConstants>(group + to_constants(kKind, kConstants, g), zero_point, gain);
  const auto share = [&](float of) { return _mm512_mul_ph(scale, _mm512_set1_ph(static_cast<_Float16>(of))); };
  if constexpr (kKind == WeightKind::q4) {
    // Most nibbles are taken where they are in their word: 16 or 256 times too large.
    const __m512h sixteenth = share(1.0f / 16), least = share(1.0f / 256);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i words = _mm512_loadu_si512(group + kLine * j);
      uint8_t* lines = out + 4 * kLine * j;
      widen_line(under(0x000f, words), scale, minimum, lines);
      widen_line(under(0x0f00, words), least, minimum, lines + kLine);
      widen_line(under(0x00f0, words), sixteenth, minimum, lines + 2 * kLine);
      widen_line(_mm512_srli_epi16(words, 12), scale, minimum, lines + 3 * kLine);
    }
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m512i words = _mm512_loadu_si512(group + kLine * j);
      widen_line(under(0x00ff, words), scale, minimum, out + 2 * kLine * j);
      widen_line(_mm512_srli_epi16(words, 8), scale, minimum, out + 2 * kLine * j + kLine);
    }
  }
}

// Tiles of weights, one for each group of some panels, from group `first` on.
struct Lines {
  const uint8_t* data;
  size_t panel_bytes;
  int first;

  const uint8_t* tile(int panel, int group) const {
    return data + static_cast<size_t>(panel) * panel_bytes + static_cast<size_t>(group - first) * kTileBytes;
  }
};

// Copies the pairs of a group; those behind the end of a row are zeros, as they are in the activations.
static void copy_pairs(const uint8_t* from, int pairs, uint8_t* out) {
  for (int i = 0; i < kTileRows; ++i)
    _mm512_store_si512(out + kLine * i, i < pairs ? _mm512_loadu_si512(from + kLine * i) : _mm512_setzero_si512());
}

// GCC takes its own prefetches for nothing that is done, and does not call a function that does nothing else.
static inline void ask_for(const void* p) { asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p))); }
static inline void ask_for_l2(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

// Asks for group `g` of one panel.
template <WeightKind kKind, Constants kConstants>
static inline void ask_for_group(const uint8_t* panel, int g) {
  constexpr bool kPlain = kKind == WeightKind::bf16;
  constexpr int kLines = kPlain ? kTileRows : quant_bytes(kKind) / kLine;
  const uint8_t* group = panel + (kPlain ? static_cast<size_t>(g) * kTileBytes : quants_at(kKind, kConstants, g));
#pragma GCC unroll 16
  for (int j = 0; j < kLines; ++j) ask_for(group + kLine * j);
  if constexpr (!kPlain) ask_for(group + to_constants(kKind, kConstants, g));
}

// Widens groups first .. end - 1 of `PT` panels into tiles, and asks for those that are `ahead` groups further.
template <WeightKind kKind, Constants kConstants, int PT>
static void widen_groups(const Weight& w, int panel, int first, int end, int ahead, float gain, const Lines& to) {
  const uint8_t* data = w.data + static_cast<size_t>(panel) * w.panel_bytes;
  const int groups = num_groups(w), zero_point = w.zero;
  for (int g = first; g < end; ++g)
#pragma GCC unroll 4
    for (int p = 0; p < PT; ++p) {
      const uint8_t* own = data + static_cast<size_t>(p) * w.panel_bytes;
      const int next = g + ahead;
      if (next < groups)
        ask_for_group<kKind, kConstants>(own, next);
      else
        ask_for_group<kKind, kConstants>(own + PT * w.panel_bytes, next - groups);
      uint8_t* out = const_cast<uint8_t*>(to.tile(p, g));
      if constexpr (kKind == WeightKind::bf16)
        copy_pairs(own + static_cast<size_t>(g) * kTileBytes, smaller(kTileRows, w.k / 2 - g * kTileRows), out);
      else
        widen<kKind, kConstants>(own, g, zero_point, gain, out);
    }
  finish_stores();
}

// ---- multiplying ----

// Sums of a block: RT row tiles by PT panels, in tiles 0 .. 3. At least four of them hide how long one product takes.
template <int RT, int PT>
static void clear_sums() {
  _tile_zero(0);
  if constexpr (PT > 1 || RT > 1) _tile_zero(1);
  if constexpr (PT > 2 || RT > 1) _tile_zero(2);
  if constexpr (PT > 3 || RT > 1) _tile_zero(3);
}

// [row][panel][16]
template <int RT, int PT>
static void load_sums(const float* sums) {
  constexpr int kStride = PT * kPanel * 4;
  _tile_loadd(0, sums, kStride);
  if constexpr (PT > 1) _tile_loadd(1, sums + kPanel, kStride);
  if constexpr (PT > 2) _tile_loadd(2, sums + 2 * kPanel, kStride);
  if constexpr (PT > 3) _tile_loadd(3, sums + 3 * kPanel, kStride);
  if constexpr (RT > 1) _tile_loadd(2, sums + kTileRows * PT * kPanel, kStride);
  if constexpr (RT > 1 && PT > 1) _tile_loadd(3, sums + kTileRows * PT * kPanel + kPanel, kStride);
}

template <int RT, int PT>
static void store_sums(float* sums) {
  constexpr int kStride = PT * kPanel * 4;
  _tile_stored(0, sums, kStride);
  if constexpr (PT > 1) _tile_stored(1, sums + kPanel, kStride);
  if constexpr (PT > 2) _tile_stored(2, sums + 2 * kPanel, kStride);
  if constexpr (PT > 3) _tile_stored(3, sums + 3 * kPanel, kStride);
  if constexpr (RT > 1) _tile_stored(2, sums + kTileRows * PT * kPanel, kStride);
  if constexpr (RT > 1 && PT > 1) _tile_stored(3, sums + kTileRows * PT * kPanel + kPanel, kStride);
}

// Adds groups first .. end - 1. Rows go past the nearest cache: it has the weights.
template <int RT, int PT>
static void multiply(const uint8_t* rows, size_t stride, const Lines& lines, int first, int end) {
  for (int g = first; g < end; ++g) {
    const uint8_t *at = rows + g * kLine, *line = lines.tile(0, g);
    _tile_stream_loadd(4, at, stride);
    _tile_loadd(6, line, kLine);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (PT > 1) {
      _tile_loadd(7, line + lines.panel_bytes, kLine);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (PT > 2) {
      _tile_loadd(6, line + 2 * lines.panel_bytes, kLine);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (PT > 3) {
      _tile_loadd(7, line + 3 * lines.panel_bytes, kLine);
      _tile_dpbf16ps(3, 4, 7);
    }
    if constexpr (RT > 1) {
      _tile_stream_loadd(5, at + kTileRows * stride, stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (PT > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// x / (1 + e^-x), with a reciprocal of 14 bits made better once: a division would take longer than all the rest.
static inline f32 gate(f32 x) {
  const f32 d = add(broadcast(1.0f), exp(sub(zero(), x)));
  const f32 guess = _mm512_rcp14_ps(d);
  return mul(x, fma(guess, _mm512_fnmadd_ps(d, guess, broadcast(1.0f)), guess));
}

// The sums of a block -> the output.
template <int PT>
static void unscale(const MatmulArgs& a, int row, int rows, int panel, const float* sums, float factor) {
  const f32 by = broadcast(factor);
  const auto sum = [&](const float* in, int p) { return mul(load(in + p * kPanel), by); };
  const auto gated = [&](const float* in, int p) { return mul(gate(sum(in, p)), sum(in, p + 1)); };
  const size_t gated_stride = a.gated ? tiled_stride(a.reader->kind, a.reader->k) : 0;
  for (int r = 0; r < rows; ++r) {
    float* out = a.out + static_cast<size_t>(row + r) * a.out_stride;
    uint8_t* gated_row = a.gated + static_cast<size_t>(row + r) * gated_stride;
    const float* in = sums + r * PT * kPanel;
    switch (a.epilogue) {
      case Epilogue::store:
        for (int p = 0; p < PT; ++p) store(out + (panel + p) * kPanel, sum(in, p));
        break;
      case Epilogue::add:
        for (int p = 0; p < PT; ++p)
          store(out + (panel + p) * kPanel, add(load(out + (panel + p) * kPanel), sum(in, p)));
        break;
      case Epilogue::swiglu:
        for (int p = 0; p + 1 < PT; p += 2) {
          const int column = (panel + p) / 2 * kPanel;
          if (a.gated)
            store_elements(a.reader->kind, gated_row + 2 * column, gated(in, p));
          else
            store(out + column, gated(in, p));
        }
        break;
    }
  }
}

// Rows row .. row + rows - 1, at most kSumRows of them, by PT panels. The first block of rows takes turns with the
// widening of what it multiplies. If there are more, they find it done: K is cut into parts whose tiles the scratch
// holds.
template <WeightKind kKind, Constants kConstants, int PT>
static void multiply_panels(const MatmulArgs& a, int row, int rows, int panel, uint8_t* scratch, float* sums) {
  constexpr int kBlockRows = (PT > 2 ? 1 : 2) * kTileRows, kGroups = kTurn / PT;
  const Weight& w = *a.weight;
  const size_t stride = tiled_stride(w.kind, w.k);
  const Gain gain = kKind == WeightKind::bf16 ? Gain{1.0f, 1.0f} : gain_of(w.largest);
  const bool ready = kKind == WeightKind::bf16 && w.k % kGroup == 0;  // to be multiplied where it is
  const bool once = rows <= kBlockRows;
  const int groups = num_groups(w), part = ready || once ? groups : smaller(groups, kSlots / PT);
  for (int first = 0; first < groups; first += part) {
    const int end = smaller(first + part, groups);
    const auto block = [&]<int RT>(int r) {
      const uint8_t* at = a.activations + static_cast<size_t>(row + r) * stride;
      float* to = sums + (part == groups ? 0 : r * PT * kPanel);  // where K is one part, the same place for all blocks
      if (first == 0)
        clear_sums<RT, PT>();
      else
        load_sums<RT, PT>(to);
      if (ready) {
        const Lines lines{w.data + static_cast<size_t>(panel) * w.panel_bytes, w.panel_bytes, 0};
        multiply<RT, PT>(at, stride, lines, first, end);
      } else if (r > 0) {
        multiply<RT, PT>(at, stride, {scratch, static_cast<size_t>(part) * kTileBytes, first}, first, end);
      } else {
        for (int g = first; g < end; g += kGroups) {
          const int last = smaller(g + kGroups, end);
          const Lines lines{scratch, static_cast<size_t>(once ? kGroups : part) * kTileBytes, once ? g : first};
          widen_groups<kKind, kConstants, PT>(w, panel, g, last, once ? kGroups : part, gain.of_weights, lines);
          multiply<RT, PT>(at, stride, lines, g, last);
        }
      }
      store_sums<RT, PT>(to);
      if (end == groups) unscale<PT>(a, row + r, smaller(RT * kTileRows, rows - r), panel, to, gain.of_sums);
    };
    for (int r = 0; r < rows; r += kBlockRows) {
      if constexpr (PT <= 2) {
        if (rows - r > kTileRows) {
          block.template operator()<2>(r);
          continue;
        }
      }
      block.template operator()<1>(r);
    }
  }
}

template <WeightKind kKind, Constants kConstants>
static void multiply_all(const MatmulArgs& a, int first_panel, int last_panel) {
  alignas(64) uint8_t scratch[kSlots * kTileBytes];
  alignas(64) float sums[kSumRows * 2 * kPanel];
  for (int row = 0; row < a.rows; row += kSumRows) {
    const int rows = smaller(kSumRows, a.rows - row);
    int panel = first_panel;
    if (rows <= kTileRows)
      for (; panel + 4 <= last_panel; panel += 4)
        multiply_panels<kKind, kConstants, 4>(a, row, rows, panel, scratch, sums);
    for (; panel + 2 <= last_panel; panel += 2)
      multiply_panels<kKind, kConstants, 2>(a, row, rows, panel, scratch, sums);
    if (panel < last_panel) multiply_panels<kKind, kConstants, 1>(a, row, rows, panel, scratch, sums);
  }
}

static void multiply_any(const MatmulArgs& a, int first_panel, int last_panel) {
  constexpr WeightKind q4 = WeightKind::q4, q8 = WeightKind::q8;
  if (a.weight->kind == WeightKind::bf16)
    return multiply_all<WeightKind::bf16, Constants::scale>(a, first_panel, last_panel);  // whatever they were
  const bool nibbles = a.weight->kind == q4;
  switch (a.weight->constants) {
    case Constants::scale:
      return nibbles ? multiply_all<q4, Constants::scale>(a, first_panel, last_panel)
                     : multiply_all<q8, Constants::scale>(a, first_panel, last_panel);
    case Constants::wide_scale:
      return multiply_all<q8, Constants::wide_scale>(a, first_panel, last_panel);
    case Constants::scale_and_minimum:
      return nibbles ? multiply_all<q4, Constants::scale_and_minimum>(a, first_panel, last_panel)
                     : multiply_all<q8, Constants::scale_and_minimum>(a, first_panel, last_panel);
  }
}

static void tiled_matmul(const MatmulArgs& a, int first_panel, int last_panel) {
  if (a.weight->kind == WeightKind::f32) return matmul(a, first_panel, last_panel);
  configure_products();
  multiply_any(a, first_panel, last_panel);
}

// What no product can beat: tiles multiplied where they are. With zeros in them the processor would stay at a clock
// that it cannot keep up with numbers: on Emerald Rapids it multiplies zeros 1.2 times as fast.
static double tiled_spin_dots(WeightKind kind, int rounds, float* result) {
  if (kind == WeightKind::f32) return spin_dots(kind, rounds, result);
  constexpr int kRound = 4;
  alignas(64) uint16_t numbers[kRound * kTileBytes / 2];
  uint32_t state = 1;
  for (uint16_t& number : numbers) {  // +-1 .. 2, so that sums grow slowly
    state = state * 1664525u + 1013904223u;
    number = static_cast<uint16_t>(0x3f80 | (state >> 16 & 0x807f));
  }
  configure_products();
  finish_stores();
  clear_sums<2, 2>();
  _tile_loadd(4, numbers, kLine);
  _tile_loadd(5, numbers + kTileBytes / 2, kLine);
  _tile_loadd(6, numbers + kTileBytes, kLine);
  _tile_loadd(7, numbers + 3 * kTileBytes / 2, kLine);
  for (int i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[kTileRows * kPanel];
  _tile_stored(0, sums, kLine);
  *result = sums[0];
  return 2.0 * kRound * kTileRows * kPanel * kGroup * rounds;
}
