// Attention on tiles, where the cache is bf16. Part of the namespace of amx.
//
// The cache holds keys and values as the instruction wants them: a unit of 16 keys is pairs of dimensions, 16 keys side
// by side, and their values are pairs of keys, dimensions side by side. So 16 query rows at a time are multiplied with
// both where they lie. The softmax between them is the generic one.

inline constexpr int kTiledRows = 3 * kTileRows;  // that share one reading of the keys
inline constexpr int kMaxTiledDim = 256;

static bool attends_on_tiles(const KvLayout& l) {
  return l.type == KvType::bf16 && l.head_dim % kGroup == 0 && l.head_dim <= kMaxTiledDim;
}

static int tiled_query_rows(const KvLayout& l) { return attends_on_tiles(l) ? kTiledRows : query_rows(l); }

// Tiles 0 .. 3 are sums. A product with keys has 32 dimensions (tiles 4 and 5), one with values 16 keys (6 and 7): what
// lies side by side in the cache. Half as many take half as long.
static void configure_attention() {
  static constexpr TileConfig config = [] {
    TileConfig c = whole_tiles();
    c.row_bytes[6] = kLine / 2;
    c.rows[7] = kTileRows / 2;
    return c;
  }();
  configure(config);
}

// Of a tile of keys, its four units: where their keys and values lie.
struct TiledUnits {
  const uint8_t *keys[kTileKeys / 16], *values[kTileKeys / 16];

  void set(int u, const Keys& in, int key) {
    const KvLayout& l = in.layout;
    keys[u] = in.tile(key) + static_cast<size_t>(in.slot(key) / 16) * static_cast<size_t>(16 * l.head_dim * 2);
    values[u] = keys[u] + l.tile_bytes;
  }
};

// A tile's units where the cache has them in halves, and those of whose values some were never written.
struct CopiedUnits {
  static constexpr int kUnitBytes = 16 * kMaxTiledDim * 2;
  alignas(64) uint8_t keys[kTileKeys / 16][kUnitBytes], values[kTileKeys / 16][kUnitBytes];
};

static void copy_keys(const Unit& halves, int dim, uint8_t* out) {
  for (int i = 0; i < dim / 2; ++i)
    _mm512_store_si512(out + kLine * i, load_bytes_halves(halves.low + kLine / 2 * i, halves.high + kLine / 2 * i));
}

// The values of the unit at `key`; zeros for all but its keys first .. end - 1.
static void copy_values(const Keys& keys, int key, int first, int end, uint8_t* out) {
  const KvLayout& l = keys.layout;
  const int line_bytes = l.head_dim * 4;
  for (int i = 0; i < 16; i += 2, out += line_bytes) {
    if (i < first || i >= end) {
      __builtin_memset(out, 0, static_cast<size_t>(line_bytes));
      continue;
    }
    const uint8_t* pair = keys.tile(key + i) + l.tile_bytes + keys.slot(key + i) / 2 * line_bytes;
    for (int b = 0; b < line_bytes; b += kLine) {
      const bytes both = load_bytes(pair + b);
      _mm512_store_si512(out + b, i + 1 == end ? keep_low_bf16(both) : both);
    }
  }
}

// Of the keys from `start` on, skip .. num_keys - 1 are read: units that hold none stand where the first one does.
static TiledUnits units_of(const Keys& keys, int start, int skip, int num_keys, CopiedUnits* copied) {
  TiledUnits units;
  for (int u = 0; u < kTileKeys / 16; ++u) {
    const int key = start + 16 * u, first = larger(skip - 16 * u, 0), end = smaller(num_keys - 16 * u, 16);
    if (first >= 16 || end <= 0) {
      units.keys[u] = nullptr;
      continue;
    }
    if (unit_keys(keys.layout) < 16) {
      copy_keys(unit_at<KvBf16>(keys, key, start + skip, start + num_keys - 1), keys.layout.head_dim, copied->keys[u]);
      units.keys[u] = copied->keys[u];
    } else {
      units.set(u, keys, key);
    }
    if (unit_keys(keys.layout) < 16 || end < 16) {
      copy_values(keys, key, first, end, copied->values[u]);
      units.values[u] = copied->values[u];
    }
  }
  for (const uint8_t*& unit : units.keys)
    if (!unit) unit = units.keys[skip / 16];
  return units;
}

// Asks for some lines, one behind the other, into the second cache, as the generic attention does.
template <int kCount>
static inline void ask_for_lines(const uint8_t* at) {
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) ask_for_l2(at + kLine * i);
}

// Scores of 16 rows with 64 keys; `ahead`, where there is one, is asked for.
static void score_tiles(const uint8_t* queries, int dim, const TiledUnits& units, const TiledUnits* ahead,
                        float (*scores)[kTileKeys]) {
  const size_t row_bytes = static_cast<size_t>(dim) * 2;
  finish_stores();
  clear_sums<1, 4>();
  for (int d = 0; d < dim; d += kGroup) {
    const int at = d / kGroup * kTileBytes;
    _tile_loadd(4, queries + 2 * d, row_bytes);
    if (ahead)
      for (int u = 0; u < kTileKeys / 16; ++u) ask_for_lines<kTileRows>(ahead->keys[u] + at);
    _tile_loadd(5, units.keys[0] + at, kLine);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, units.keys[1] + at, kLine);
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(5, units.keys[2] + at, kLine);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(5, units.keys[3] + at, kLine);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, scores[0], kTileKeys * 4);
  _tile_stored(1, scores[0] + 16, kTileKeys * 4);
  _tile_stored(2, scores[0] + 32, kTileKeys * 4);
  _tile_stored(3, scores[0] + 48, kTileKeys * 4);
}

// Rows at a time that one softmax has lanes and registers for.
inline constexpr int kSoftRows = 8;

using Soften = decltype(&soften<KvBf16, 1>);
static constexpr Soften kSoften[] = {soften<KvBf16, 1>, soften<KvBf16, 2>, soften<KvBf16, 3>, soften<KvBf16, 4>,
                                     soften<KvBf16, 5>, soften<KvBf16, 6>, soften<KvBf16, 7>, soften<KvBf16, 8>};

// Adds weights * values of the units first_unit .. end_unit - 1, in `P` panels of 16 dimensions from `first` on, to
// what `rows` rows have so far, times each row's factor.
template <int P>
static void add_tiles(const uint8_t (*weights)[kTileKeys * 2], int rows, int dim, int first, const TiledUnits& units,
                      int first_unit, int end_unit, const TiledUnits* ahead, const Factors* factors, float* acc) {
  const size_t pair_bytes = static_cast<size_t>(dim) * 4;
  alignas(64) float sums[kTileRows][P * kPanel];
  finish_stores();
  clear_sums<1, P>();
  for (int u = first_unit; u < end_unit; ++u) {
    const uint8_t* values = units.values[u] + 4 * first;
    _tile_loadd(6, weights[0] + 32 * u, kTileKeys * 2);
    if (ahead)
      for (int p = 0; p < P; ++p)
        ask_for_lines<kTileRows / 2>(ahead->values[u] + (first / kPanel + p) * kTileBytes / 2);
    _tile_loadd(7, values, pair_bytes);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, values + kLine, pair_bytes);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (P > 2) {
      _tile_loadd(7, values + 2 * kLine, pair_bytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, values + 3 * kLine, pair_bytes);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  store_sums<1, P>(sums[0]);
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      float* at = acc + r * dim + first + kPanel * p;
      store(at, fma(load(at), broadcast(factors[r / kSoftRows].earlier[r % kSoftRows]), load(sums[r] + kPanel * p)));
    }
}

// `count` rows in the order of their positions, those of each 16 on tiles of their own. What is behind all of them is
// skipped, as it would be if they were alone.
static void attend_rows_on_tiles(const Keys& keys, const QueryRow* rows, int count, int window, int split,
                                 const Ahead& after, const Partial& partial) {
  const KvLayout& l = keys.layout;
  const int dim = l.head_dim, last_key = rows[count - 1].position;
  const int begin = larger(split * kSplitKeys, first_key(window, rows[0].position) / unit_keys(l) * unit_keys(l));
  const int end = smaller((split + 1) * kSplitKeys, last_key + 1);
  const size_t row_bytes = static_cast<size_t>(dim) * 2;
  alignas(64) uint8_t queries[kTiledRows * kMaxTiledDim * 2];
  CopiedUnits copied;
  alignas(64) uint8_t weights[kTiledRows][kTileKeys * 2] = {};
  alignas(64) float scores[kTiledRows][kTileKeys];
  Softmax softmax[kTiledRows / kSoftRows];
  TileScales scales;  // bf16 has none
  const int padded = (count + kTileRows - 1) / kTileRows * kTileRows;
  for (int r = 0; r < padded; ++r)
    for (size_t b = 0; b < row_bytes; b += kLine)
      _mm512_store_si512(queries + row_bytes * static_cast<size_t>(r) + b,
                         r < count ? _mm512_loadu_si512(rows[r].query + b) : _mm512_setzero_si512());
  __builtin_memset(partial.acc, 0, static_cast<size_t>(count * dim) * 4);
  for (int start = begin / kTileKeys * kTileKeys; start < end; start += kTileKeys) {
    const int skip = larger(begin - start, 0), num_keys = smaller(kTileKeys, end - start), then = start + kTileKeys;
    const int first_unit = skip / 16, end_unit = (num_keys + 15) / 16;
    const Ahead next = then <= last_key ? Ahead{keys, then, then, last_key + 1} : after;
    const TiledUnits units = units_of(keys, start, skip, num_keys, &copied);
    TiledUnits ahead = units;
    for (int u = 0; u < kTileKeys / 16; ++u)
      if (unit_keys(l) == 16 && next.reads(16 * u)) ahead.set(u, next.keys, next.start + 16 * u);
    // Rows that end before this tile come first, and the last ones see all keys: these ask for the next tile.
    int from = 0;
    while (rows[smaller(from + kTileRows, count) - 1].position < start) from += kTileRows;
    const auto asked_by = [&](int r) { return r + kTileRows < count ? nullptr : &ahead; };
    Factors factors[kTiledRows / kSoftRows];
    for (int r = from; r < count; r += kTileRows)
      score_tiles(queries + row_bytes * static_cast<size_t>(r), dim, units, asked_by(r), scores + r);
    for (int r = from; r < count; r += kSoftRows)
      kSoften[smaller(kSoftRows, count - r) - 1](rows + r, window, start, scales, scores + r, weights + r,
                                                 softmax + r / kSoftRows, factors + r / kSoftRows);
    for (int r = from; r < count; r += kTileRows) {
      const int own = smaller(kTileRows, count - r);
      const TiledUnits* asked = asked_by(r);
      float* acc = partial.acc + r * dim;
      int d = 0;
      for (; d + 4 * kPanel <= dim; d += 4 * kPanel)
        add_tiles<4>(weights + r, own, dim, d, units, first_unit, end_unit, asked, factors + r / kSoftRows, acc);
      if (d < dim)
        add_tiles<2>(weights + r, own, dim, d, units, first_unit, end_unit, asked, factors + r / kSoftRows, acc);
    }
    if (num_keys < kTileKeys) ask_for_rest<KvBf16>(next, num_keys);
  }
  for (int first = 0; first < count; first += kSoftRows) {
    alignas(64) float maxima[16], sums[16];
    store(maxima, softmax[first / kSoftRows].maxima);
    store(sums, softmax[first / kSoftRows].sums);
    for (int r = first; r < smaller(first + kSoftRows, count); ++r) {
      partial.maximum[r] = maxima[r - first];
      partial.sum[r] = sums[r - first];
    }
  }
}

static void tiled_attend_split(const AttendArgs& a, int split, const Partial& partial) {
  if (!attends_on_tiles(*a.layout)) return attend_split(a, split, partial);
  QueryRow rows[kTiledRows];
  for (int i = 0; i < a.num_rows; ++i) rows[i] = query_row<KvBf16>(a, i);
  configure_attention();
  attend_rows_on_tiles(keys_of(a), rows, a.num_rows, a.window, split,
                       a.next ? first_tile(*a.next) : Ahead{keys_of(a), 0, 0, 0}, partial);
}
