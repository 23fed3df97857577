// Paged attention: the online softmax over the blocks of the KV cache.
// Part of one instruction set's namespace. Head dimensions are multiples of 16.
//
// Prompts, chunks and decodes are one case: query rows with positions. Keys are read in tiles of kTileKeys at fixed
// positions, and tiles are summed in splits of kSplitKeys at fixed positions, so a row's arithmetic depends on its
// position alone. A key beyond a row's position, or before its window, has weight 0, which adds nothing.

// The K and V tiles of one head, by key position.
struct Keys {
  const KvLayout& layout;
  const uint8_t* head;  // this head's K tile in block 0
  const int32_t* blocks;

  const uint8_t* tile(int key) const {
    return head + static_cast<size_t>(blocks[key >> layout.block_shift]) * layout.block_bytes;
  }
  int slot(int key) const { return key & (layout.block_size - 1); }
};

// What is read after a tile, and asked for while that is computed: a tile of the same keys, or of those that come next.
// Of the keys from `start` on those in begin .. end - 1 are read; none where nothing is known to follow.
struct Ahead {
  Keys keys;
  int start, begin, end;

  bool reads(int key) const { return start + key >= begin && start + key < end; }
};

// The scales of one tile's keys and values, where they have any; 0 for keys that are not read.
struct TileScales {
  alignas(64) float keys[kTileKeys], values[kTileKeys];
};

// Reads one tile's, and asks for those of the next.
static void read_scales(const Keys& keys, int start, int skip, int num_keys, const Ahead& next, TileScales* scales) {
  const KvLayout& l = keys.layout;
  *scales = {};
  for (int key = 0; key < kTileKeys; key += unit_keys(l)) {
    if (!next.reads(key)) continue;
    const int at = next.start + key;
    const uint8_t* ahead = next.keys.tile(at) + l.block_size * l.head_dim + next.keys.slot(at) * 4;
    prefetch_l2(ahead);
    prefetch_l2(ahead + l.tile_bytes);
  }
  for (int key = skip; key < num_keys;) {
    const int slot = keys.slot(start + key), run = smaller(num_keys - key, l.block_size - slot);
    const uint8_t* at = keys.tile(start + key) + l.block_size * l.head_dim + slot * 4;
    if (run % 16 == 0) {  // nearly always
      for (int i = 0; i < run; i += 16) {
        store(scales->keys + key + i, load(reinterpret_cast<const float*>(at) + i));
        store(scales->values + key + i, load(reinterpret_cast<const float*>(at + l.tile_bytes) + i));
      }
    } else {
      __builtin_memcpy(scales->keys + key, at, static_cast<size_t>(run) * 4);
      __builtin_memcpy(scales->values + key, at + l.tile_bytes, static_cast<size_t>(run) * 4);
    }
    key += run;
  }
}

inline constexpr int kQueryRows = 6;  // that share one reading of the keys: what the registers hold

static int query_rows(const KvLayout&) { return kQueryRows; }

struct QueryRow {
  const uint8_t* query;
  int position;
};

// 16 keys side by side: one unit of a K tile, or the halves of two where blocks hold only 8.
struct Unit {
  const uint8_t *low, *high;
};

// Halves that lie before the first key or behind the last one are not read: the other half stands in for them.
template <class Kv>
static inline Unit unit_at(const Keys& keys, int key, int first_key, int last_key) {
  const KvLayout& l = keys.layout;
  if (unit_keys(l) == 16) {
    const uint8_t* low =
        keys.tile(key) + static_cast<size_t>(keys.slot(key) / 16) * static_cast<size_t>(16 * l.head_dim * Kv::kElement);
    return {low, low + 8 * Kv::kDimsPerStep * Kv::kElement};
  }
  return {keys.tile(key + 8 <= first_key ? key + 8 : key), keys.tile(key + 8 <= last_key ? key + 8 : key)};
}

// While a tile is computed the next one is asked for, a line for a line: a burst of requests would have the processor
// wait for its own misses. `ahead` is the same place of the next tile; where that ends, the place itself. It is asked
// for into the second cache: the nearest one keeps count of few misses, and they would be the limit.
template <class Kv, bool kWhole>
static inline void prefetch_step(const Unit& ahead, int i) {
  const size_t line = (kWhole ? 16 : 8) * Kv::kDimsPerStep * Kv::kElement * static_cast<size_t>(i);
  if (line % 64) return;
  prefetch_l2(ahead.low + line);
  if (!kWhole) prefetch_l2(ahead.high + line);
}

// Vectors of sums for each of R rows: what the registers hold. Bytes that become words need some of their own.
template <class Kv, int R>
constexpr int vectors_at_once() {
  return kScoreUnits > 1 && Kv::type == KvType::int8 && R > 3 ? kScoreUnits / 2 : kScoreUnits;
}

template <class Kv>
static inline typename Kv::Sum zero_sum() {
  if constexpr (Kv::type == KvType::int8)
    return zero_int();
  else
    return zero();
}

// acc + the products of four bytes in each lane with four words, at most 512 of them: no sum leaves 32 bits.
static inline i32 dot4_words(i32 acc, bytes fours, const uint8_t* words, int i) {
  acc = dot2_words(acc, even_words(fours), pair_of(words, 2 * i));
  return dot2_words(acc, odd_words(fours), pair_of(words, 2 * i + 1));
}

template <class Kv, bool kWhole>
static inline typename Kv::Sum score_step(typename Kv::Sum acc, const Unit& unit, int i, const uint8_t* query) {
  const size_t line = (kWhole ? 16 : 8) * Kv::kDimsPerStep * Kv::kElement * static_cast<size_t>(i);
  if constexpr (Kv::type == KvType::int8) {
    const bytes keys = kWhole ? load_bytes(unit.low + line) : load_bytes_halves(unit.low + line, unit.high + line);
    return dot4_words(acc, keys, query, i);
  } else if constexpr (Kv::type == KvType::bf16) {
    const bytes keys = kWhole ? load_bytes(unit.low + line) : load_bytes_halves(unit.low + line, unit.high + line);
    return dot2_bf16(acc, keys, pair_of(query, i));
  } else {
    const float q = reinterpret_cast<const float*>(query)[i];
    if constexpr (Kv::type == KvType::f16)
      return fma(kWhole ? load_f16(unit.low + line) : load_f16_halves(unit.low + line, unit.high + line), broadcast(q),
                 acc);
    else
      return fma(kWhole ? load(reinterpret_cast<const float*>(unit.low + line))
                        : load_halves(reinterpret_cast<const float*>(unit.low + line),
                                      reinterpret_cast<const float*>(unit.high + line)),
                 broadcast(q), acc);
  }
}

// The scores that a sum stands for.
template <class Kv>
static inline f32 score_of(typename Kv::Sum sum, const uint8_t* query, int dim, const float* key_scales) {
  if constexpr (Kv::type == KvType::int8) {
    float scale;
    __builtin_memcpy(&scale, query + 2 * dim, 4);
    return mul(mul(to_float(sum), load(key_scales)), broadcast(scale));
  } else {
    return sum;
  }
}

template <class Kv, int R, int NU, bool kWhole>
static void score_units(const QueryRow* rows, const Unit* units, const Unit* ahead, int dim, const float* key_scales,
                        float (*scores)[kTileKeys]) {
  typename Kv::Sum acc[NU][R];
#pragma GCC unroll 8
  for (int u = 0; u < NU; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[u][r] = zero_sum<Kv>();
  for (int i = 0; i < dim / Kv::kDimsPerStep; ++i)
#pragma GCC unroll 8
    for (int u = 0; u < NU; ++u) {
      prefetch_step<Kv, kWhole>(ahead[u], i);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[u][r] = score_step<Kv, kWhole>(acc[u][r], units[u], i, rows[r].query);
    }
#pragma GCC unroll 8
  for (int u = 0; u < NU; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      store(scores[r] + 16 * u, score_of<Kv>(acc[u][r], rows[r].query, dim, key_scales + 16 * u));
}

// Scores of keys `skip` .. num_keys - 1 of a tile, in whole units of 16.
template <class Kv, int R>
static void score_tile(const Keys& keys, const QueryRow* rows, int start, int skip, int num_keys, const Ahead& next,
                       const TileScales& scales, float (*scores)[kTileKeys]) {
  const int num_units = (num_keys + 15) / 16, dim = keys.layout.head_dim;
  const bool whole = unit_keys(keys.layout) == 16;
  Unit units[kTileKeys / 16], ahead[kTileKeys / 16];
  int u = skip / 16;
  for (int i = u; i < num_units; ++i) {
    units[i] = unit_at<Kv>(keys, start + 16 * i, start + skip, start + num_keys - 1);
    ahead[i] = next.reads(16 * i) ? unit_at<Kv>(next.keys, next.start + 16 * i, next.begin, next.end - 1) : units[i];
  }
  constexpr int kUnits = vectors_at_once<Kv, R>();
  for (; whole && kUnits > 1 && u + kUnits <= num_units; u += kUnits)
    score_units<Kv, R, kUnits, true>(rows, units + u, ahead + u, dim, scales.keys + 16 * u,
                                     reinterpret_cast<float (*)[kTileKeys]>(scores[0] + 16 * u));
  for (; u < num_units; ++u) {
    float (*at)[kTileKeys] = reinterpret_cast<float (*)[kTileKeys]>(scores[0] + 16 * u);
    if (whole)
      score_units<Kv, R, 1, true>(rows, units + u, ahead + u, dim, scales.keys + 16 * u, at);
    else
      score_units<Kv, R, 1, false>(rows, units + u, ahead + u, dim, scales.keys + 16 * u, at);
  }
}

// 16 scores, and minus infinity for those outside first .. end - 1.
static inline f32 scores_within(const float* scores, int first, int end) {
  const f32 none = broadcast(-__builtin_inff());
  if (end <= 0 || first >= 16) return none;
  f32 lanes = load(scores);
  if (end < 16) lanes = first_lanes(end, lanes, none);
  return first > 0 ? first_lanes(first, none, lanes) : lanes;
}

// What each row's sums of earlier tiles are multiplied by, and those of this one where they are integers.
struct Factors {
  alignas(64) float earlier[16], own[16];
};

// Of each row so far, a lane for each: the highest score, and the sum of the weights relative to it.
struct Softmax {
  f32 maxima = broadcast(-__builtin_inff()), sums = zero();
};

// Weights times the scales of their values, as words and the scale of those. A weight of 0 gives 0, whatever the value:
// it may be of a token behind this row's own.
static float weights_as_words(const f32* weights, const float* value_scales, uint8_t* words) {
  f32 scaled[kTileKeys / 16];
  f32 largest = zero(), poison = zero();
#pragma GCC unroll 4
  for (int v = 0; v < kTileKeys / 16; ++v) {
    scaled[v] = below(zero(), weights[v], mul(weights[v], load(value_scales + 16 * v)), zero());
    largest = max(largest, scaled[v]);
    poison = fma(scaled[v], zero(), poison);
  }
  const Steps steps = steps_of(reduce_max(largest), reduce_add(poison), kWordLimit);
#pragma GCC unroll 4
  for (int v = 0; v < kTileKeys / 16; ++v)
    store_words(words + 32 * v, to_int(mul(scaled[v], broadcast(steps.inverse))));
  return steps.scale;
}

// Scores of R rows -> weights relative to their new maxima, 0 outside a row's own keys. What is one number for a row is
// computed for all rows together: each would wait for its own. Where weights are rounded to bf16 (into `narrowed`), the
// rounded ones are summed: they add up to 1 in the end.
template <class Kv, int R>
static void soften(const QueryRow* rows, int window, int start, const TileScales& scales, float (*scores)[kTileKeys],
                   uint8_t (*narrowed)[kTileKeys * 2], Softmax* softmax, Factors* factors) {
  constexpr int kVectors = kTileKeys / 16;
  const bool whole = start + kTileKeys <= rows[0].position + 1 && first_key(window, rows[R - 1].position) <= start;
  f32 highest[R], totals[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    if (!whole) {
      const int first = first_key(window, rows[r].position) - start, end = rows[r].position + 1 - start;
      for (int v = 0; v < kVectors; ++v)
        store(scores[r] + 16 * v, scores_within(scores[r] + 16 * v, first - 16 * v, end - 16 * v));
    }
    const float* at = scores[r];
    highest[r] = max(max(load(at), load(at + 16)), max(load(at + 32), load(at + 48)));
  }
  const f32 maxima = max(max_of_rows<R>(highest), softmax->maxima);
  // A row that has no key yet has no maximum: relative to 0 its weights are 0.
  const f32 base = below(maxima, broadcast(-__FLT_MAX__), zero(), maxima);
  const f32 rescale = exp(sub(softmax->maxima, base));
  alignas(64) float bases[16];
  store(bases, base);
  store(factors->earlier, rescale);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    f32 lanes[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      lanes[v] = exp(sub(load(scores[r] + 16 * v), broadcast(bases[r])));
      if constexpr (Kv::type == KvType::bf16) {
        store_bf16(narrowed[r] + 32 * v, lanes[v]);
        lanes[v] = load_bf16(narrowed[r] + 32 * v);
      } else if constexpr (Kv::type != KvType::int8) {
        store(scores[r] + 16 * v, lanes[v]);
      }
    }
    if constexpr (Kv::type == KvType::int8) factors->own[r] = weights_as_words(lanes, scales.values, narrowed[r]);
    totals[r] = add(add(lanes[0], lanes[1]), add(lanes[2], lanes[3]));
  }
  softmax->sums = add(mul(softmax->sums, rescale), sum_of_rows<R>(totals));
  softmax->maxima = maxima;
}

// acc[r] = acc[r] * earlier[r] + own[r] * weights[r] * V over keys `skip` .. num_keys - 1 of a tile, for `DV` vectors
// of dimensions from `first` on.
template <class Kv, int R, int DV>
static void add_values(const Keys& keys, int start, int skip, int num_keys, const Ahead& next, int first,
                       const uint8_t* weights, const Factors& factors, float* acc) {
  const KvLayout& l = keys.layout;
  const int dim = l.head_dim;
  constexpr size_t kWeightStride = kTileKeys * Kv::kWeightElement;
  typename Kv::Sum sums[R][DV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < DV; ++v) {
      if constexpr (Kv::type == KvType::int8)
        sums[r][v] = zero_int();
      else
        sums[r][v] = mul(load(acc + r * dim + first + 16 * v), broadcast(factors.earlier[r]));
    }
  for (int key = skip; key < num_keys;) {
    const int slot = keys.slot(start + key);
    const int run = smaller(num_keys - key, l.block_size - slot);
    const uint8_t* tile = keys.tile(start + key) + l.tile_bytes;
    const uint8_t* ahead = next.reads(key) ? next.keys.tile(next.start + key) + l.tile_bytes : tile;
    for (int j = 0; j < run; j += Kv::kKeysPerStep) {
      const size_t offset =
          (static_cast<size_t>(slot + j) * static_cast<size_t>(dim) + static_cast<size_t>(first * Kv::kKeysPerStep)) *
          Kv::kElement;
      const uint8_t *line = tile + offset, *line_ahead = ahead + offset;
#pragma GCC unroll 8
      for (int v = 0; v < DV; ++v) {
        constexpr int kVectorBytes = 16 * Kv::kKeysPerStep * Kv::kElement;
        if (kVectorBytes == 64 || v % 2 == 0) prefetch_l2(line_ahead + kVectorBytes * v);
        if constexpr (Kv::type == KvType::int8) {
          const bytes fours = load_bytes(line + 64 * v);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            sums[r][v] = dot4_words(sums[r][v], fours, weights + r * kWeightStride, (key + j) / 4);
        } else if constexpr (Kv::type == KvType::bf16) {
          bytes pairs = load_bytes(line + 64 * v);
          if (key + j + 1 == num_keys) pairs = keep_low_bf16(pairs);  // its partner was never written
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            sums[r][v] = dot2_bf16(sums[r][v], pairs, pair_of(weights + r * kWeightStride, (key + j) / 2));
        } else {
          const f32 values =
              Kv::type == KvType::f16 ? load_f16(line + 32 * v) : load(reinterpret_cast<const float*>(line) + 16 * v);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r)
            sums[r][v] = fma(values, broadcast(reinterpret_cast<const float*>(weights + r * kWeightStride)[key + j]),
                             sums[r][v]);
        }
      }
    }
    key += run;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < DV; ++v) {
      float* at = acc + r * dim + first + 16 * v;
      if constexpr (Kv::type == KvType::int8)
        store(at, fma(to_float(sums[r][v]), broadcast(factors.own[r]), mul(load(at), broadcast(factors.earlier[r]))));
      else
        store(at, sums[r][v]);
    }
}

// Asks for what of a tile was not asked for while one of `num_keys` keys was computed.
template <class Kv>
static void ask_for_rest(const Ahead& next, int num_keys) {
  const KvLayout& l = next.keys.layout;
  const int unit = unit_keys(l);
  const size_t bytes = static_cast<size_t>(unit * l.head_dim * Kv::kElement);
  for (int key = (num_keys + unit - 1) / unit * unit; key < kTileKeys; key += unit) {
    if (!next.reads(key)) continue;
    const uint8_t* at =
        next.keys.tile(next.start + key) + static_cast<size_t>(next.keys.slot(next.start + key) / unit) * bytes;
    for (size_t line = 0; line < bytes; line += 64) {
      prefetch_l2(at + line);
      prefetch_l2(at + l.tile_bytes + line);
    }
  }
}

// Rows in the order of their positions. Of the first tile, whole units before the first row's window are skipped: their
// blocks may be gone. A row that begins later has weight 0 up to there.
template <class Kv, int R>
static void attend_rows(const Keys& keys, const QueryRow* rows, int window, int split, const Ahead& after,
                        const Partial& partial) {
  constexpr int kVectors = vectors_at_once<Kv, R>();
  const int dim = keys.layout.head_dim, last_key = rows[R - 1].position, unit = unit_keys(keys.layout);
  const int begin = larger(split * kSplitKeys, first_key(window, rows[0].position) / unit * unit);
  const int end = smaller((split + 1) * kSplitKeys, last_key + 1);
  alignas(64) float scores[R][kTileKeys];
  alignas(64) uint8_t narrowed[R][kTileKeys * 2];
  Factors factors;
  Softmax softmax;
  TileScales scales;
  __builtin_memset(partial.acc, 0, static_cast<size_t>(R * dim) * 4);
  for (int start = begin / kTileKeys * kTileKeys; start < end; start += kTileKeys) {
    const int skip = larger(begin - start, 0), num_keys = smaller(kTileKeys, end - start);
    const int then = start + kTileKeys;
    const Ahead next = then <= last_key ? Ahead{keys, then, then, last_key + 1} : after;
    if constexpr (Kv::type == KvType::int8) read_scales(keys, start, skip, num_keys, next, &scales);
    score_tile<Kv, R>(keys, rows, start, skip, num_keys, next, scales, scores);
    soften<Kv, R>(rows, window, start, scales, scores, narrowed, &softmax, &factors);
    const uint8_t* weights = Kv::kWeightElement == 2 ? narrowed[0] : reinterpret_cast<const uint8_t*>(scores[0]);
    int first = 0;
    for (; first + 16 * kVectors <= dim; first += 16 * kVectors)
      add_values<Kv, R, kVectors>(keys, start, skip, num_keys, next, first, weights, factors, partial.acc);
    for (; first < dim; first += 16)
      add_values<Kv, R, 1>(keys, start, skip, num_keys, next, first, weights, factors, partial.acc);
    if (num_keys < kTileKeys) ask_for_rest<Kv>(next, num_keys);
  }
  alignas(64) float lanes[16];
  store(lanes, softmax.maxima);
  __builtin_memcpy(partial.maximum, lanes, R * 4);
  store(lanes, softmax.sums);
  __builtin_memcpy(partial.sum, lanes, R * 4);
}

struct RowPlace {
  int token, head;
};

static inline RowPlace place(const AttendArgs& a, int i) {
  const int group = a.heads / a.layout->kv_heads, row = a.first_row + i;
  return {row / group, a.kv_head * group + row % group};
}

static inline Keys keys_of(const AttendArgs& a) {
  return {*a.layout, a.layer + static_cast<size_t>(a.kv_head) * 2 * a.layout->tile_bytes, a.blocks};
}

static Ahead first_tile(const AttendArgs& a) {
  const int group = a.heads / a.layout->kv_heads, unit = unit_keys(*a.layout);
  const int begin = first_key(a.window, a.position + a.first_row / group) / unit * unit;
  return {keys_of(a), begin / kTileKeys * kTileKeys, begin, a.position + (a.first_row + a.num_rows - 1) / group + 1};
}

template <class Kv>
static QueryRow query_row(const AttendArgs& a, int i) {
  const RowPlace at = place(a, i);
  return {a.queries + static_cast<size_t>(at.token) * a.query_stride +
              static_cast<size_t>(at.head * a.layout->head_dim * Kv::kQueryElement),
          a.position + at.token};
}

template <class Kv>
static void attend_as(const AttendArgs& a, int split, const Partial& partial) {
  QueryRow rows[kQueryRows];
  for (int i = 0; i < a.num_rows; ++i) rows[i] = query_row<Kv>(a, i);
  const Keys keys = keys_of(a);
  const Ahead after = a.next ? first_tile(*a.next) : Ahead{keys, 0, 0, 0};
  switch (a.num_rows) {
    case 1:
      return attend_rows<Kv, 1>(keys, rows, a.window, split, after, partial);
    case 2:
      return attend_rows<Kv, 2>(keys, rows, a.window, split, after, partial);
    case 3:
      return attend_rows<Kv, 3>(keys, rows, a.window, split, after, partial);
    case 4:
      return attend_rows<Kv, 4>(keys, rows, a.window, split, after, partial);
    case 5:
      return attend_rows<Kv, 5>(keys, rows, a.window, split, after, partial);
    case 6:
      return attend_rows<Kv, 6>(keys, rows, a.window, split, after, partial);
  }
}

static void attend_split(const AttendArgs& a, int split, const Partial& partial) {
  switch (a.layout->type) {
    case KvType::bf16:
      return attend_as<KvBf16>(a, split, partial);
    case KvType::f16:
      return attend_as<KvF16>(a, split, partial);
    case KvType::f32:
      return attend_as<KvF32>(a, split, partial);
    case KvType::int8:
      return attend_as<KvInt8>(a, split, partial);
  }
}

static void attend_merge(const AttendArgs& a, const Partial* partials, int num_splits) {
  const int dim = a.layout->head_dim;
  for (int i = 0; i < a.num_rows; ++i) {
    const RowPlace at = place(a, i);
    float* out = a.out + static_cast<size_t>(at.token) * a.out_stride + at.head * dim;
    const int position = a.position + at.token, first = first_key(a.window, position) / kSplitKeys;
    __builtin_memcpy(out, partials[first].acc + i * dim, static_cast<size_t>(dim) * 4);
    float maximum = partials[first].maximum[i], sum = partials[first].sum[i];
    const int own_splits = smaller(num_splits, position / kSplitKeys + 1);
    for (int s = first + 1; s < own_splits; ++s) {
      const float other = partials[s].maximum[i], top = other > maximum ? other : maximum;
      const float keep = exp_one(maximum - top), take = exp_one(other - top);
      for (int d = 0; d < dim; d += 16)
        store(out + d, fma(load(partials[s].acc + i * dim + d), broadcast(take), mul(load(out + d), broadcast(keep))));
      sum = sum * keep + partials[s].sum[i] * take;
      maximum = top;
    }
    for (int d = 0; d < dim; d += 16) store(out + d, mul(load(out + d), broadcast(1.0f / sum)));
  }
}
