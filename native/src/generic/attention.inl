// Paged attention: rotation and storing of keys and values, and the online softmax over blocks.
// Part of one instruction set's namespace. Head dimensions are multiples of 16.
//
// Prompts, chunks and decodes are one case: query rows with positions. Keys are read in tiles of kTileKeys at fixed
// positions, and tiles are summed in splits of kSplitKeys at fixed positions, so a row's arithmetic depends on its
// position alone. A key beyond a row's position, or before its window, has weight 0, which adds nothing.

struct KvBf16 {
  static constexpr KvType type = KvType::bf16;
  static constexpr int kElement = 2, kDimsPerStep = 2, kKeysPerStep = 2, kQueryElement = 2, kWeightElement = 2;
};
struct KvF16 {
  static constexpr KvType type = KvType::f16;
  static constexpr int kElement = 2, kDimsPerStep = 1, kKeysPerStep = 1, kQueryElement = 4, kWeightElement = 4;
};
struct KvF32 {
  static constexpr KvType type = KvType::f32;
  static constexpr int kElement = 4, kDimsPerStep = 1, kKeysPerStep = 1, kQueryElement = 4, kWeightElement = 4;
};

static inline int unit_keys(const KvLayout& layout) { return smaller(layout.block_size, 16); }

// ---- writing ----

static void rotate(float* head, const float* cos_sin, int rope_dim) {
  const int half = rope_dim / 2;
  const float *cosines = cos_sin, *sines = cos_sin + half;
  int i = 0;
  for (; i + 16 <= half; i += 16) {
    const f32 c = load(cosines + i), s = load(sines + i), a = load(head + i), b = load(head + half + i);
    store(head + i, sub(mul(a, c), mul(b, s)));
    store(head + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cosines[i] - b * sines[i];
    head[half + i] = b * cosines[i] + a * sines[i];
  }
}

template <class Kv>
static void narrow(const float* x, int n, uint8_t* out) {
  for (int i = 0; i < n; i += 16) {
    if constexpr (Kv::type == KvType::bf16)
      store_bf16(out + 2 * i, load(x + i));
    else if constexpr (Kv::type == KvType::f16)
      store_f16(out + 2 * i, load(x + i));
    else
      store(reinterpret_cast<float*>(out) + i, load(x + i));
  }
}

// Strided copy of `dim` elements: a key into its lane of a K tile, or a value into its half of the pairs of a V tile.
template <int kElement>
static void scatter(const uint8_t* in, int dim, int run, size_t stride, uint8_t* out) {
  for (int i = 0; i < dim; i += run)
    __builtin_memcpy(out + static_cast<size_t>(i / run) * stride, in + i * kElement,
                     static_cast<size_t>(run) * kElement);
}

template <class Kv>
static void store_key(const KvLayout& l, const uint8_t* key, int slot, uint8_t* tile) {
  const int unit = unit_keys(l), dim = l.head_dim;
  uint8_t* at = tile + static_cast<size_t>(slot / unit) * static_cast<size_t>(unit * dim * Kv::kElement) +
                slot % unit * Kv::kDimsPerStep * Kv::kElement;
  scatter<Kv::kElement>(key, dim, Kv::kDimsPerStep, static_cast<size_t>(unit * Kv::kDimsPerStep * Kv::kElement), at);
}

template <class Kv>
static void store_value(const KvLayout& l, const uint8_t* value, int slot, uint8_t* tile) {
  const int dim = l.head_dim, step = Kv::kKeysPerStep;
  uint8_t* at = tile + static_cast<size_t>(slot / step) * static_cast<size_t>(dim * step * Kv::kElement) +
                slot % step * Kv::kElement;
  if constexpr (Kv::kKeysPerStep == 1)
    __builtin_memcpy(at, value, static_cast<size_t>(dim) * Kv::kElement);
  else
    scatter<Kv::kElement>(value, dim, 1, static_cast<size_t>(step * Kv::kElement), at);
}

template <class Kv>
static void rope_store_as(const RopeStoreArgs& a) {
  const KvLayout& l = *a.layout;
  const int dim = l.head_dim;
  float* head = static_cast<float*>(__builtin_alloca(static_cast<size_t>(dim) * 4));
  uint8_t* narrowed = static_cast<uint8_t*>(__builtin_alloca(static_cast<size_t>(dim) * 4));
  for (int h = 0; h < a.heads; ++h) {
    __builtin_memcpy(head, a.qkv + h * dim, static_cast<size_t>(dim) * 4);
    rotate(head, a.cos_sin, a.rope_dim);
    for (int i = 0; i < dim; i += 16) store(head + i, mul(load(head + i), broadcast(a.scale)));
    uint8_t* out = a.query + static_cast<size_t>(h) * static_cast<size_t>(dim * Kv::kQueryElement);
    if constexpr (Kv::kQueryElement == 2)
      narrow<Kv>(head, dim, out);
    else
      __builtin_memcpy(out, head, static_cast<size_t>(dim) * 4);
  }
  uint8_t* block = a.layer + static_cast<size_t>(a.block) * l.block_bytes;
  for (int h = 0; h < l.kv_heads; ++h, block += 2 * l.tile_bytes) {
    __builtin_memcpy(head, a.qkv + (a.heads + h) * dim, static_cast<size_t>(dim) * 4);
    rotate(head, a.cos_sin, a.rope_dim);
    narrow<Kv>(head, dim, narrowed);
    store_key<Kv>(l, narrowed, a.slot, block);
    narrow<Kv>(a.qkv + (a.heads + l.kv_heads + h) * dim, dim, narrowed);
    store_value<Kv>(l, narrowed, a.slot, block + l.tile_bytes);
  }
}

static void rope_store(const RopeStoreArgs& a) {
  switch (a.layout->type) {
    case KvType::bf16:
      return rope_store_as<KvBf16>(a);
    case KvType::f16:
      return rope_store_as<KvF16>(a);
    case KvType::f32:
      return rope_store_as<KvF32>(a);
  }
}

// ---- reading ----

// The K and V tiles of one head, by key position.
struct Keys {
  const KvLayout& layout;
  const uint8_t* head;  // this head's K tile in block 0
  const int32_t* blocks;

  const uint8_t* tile(int key) const {
    return head + static_cast<size_t>(blocks[key / layout.block_size]) * layout.block_bytes;
  }
};

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
static Unit unit_at(const Keys& keys, int key, int first_key, int last_key) {
  const KvLayout& l = keys.layout;
  const int unit = unit_keys(l), slot = key % l.block_size;
  if (unit == 16) {
    const uint8_t* low =
        keys.tile(key) + static_cast<size_t>(slot / unit) * static_cast<size_t>(unit * l.head_dim * Kv::kElement);
    return {low, low + 8 * Kv::kDimsPerStep * Kv::kElement};
  }
  return {keys.tile(key + 8 <= first_key ? key + 8 : key), keys.tile(key + 8 <= last_key ? key + 8 : key)};
}

template <class Kv, bool kWhole>
static inline f32 score_step(f32 acc, const Unit& unit, int i, const uint8_t* query) {
  const size_t line = (kWhole ? 16 : 8) * Kv::kDimsPerStep * Kv::kElement * static_cast<size_t>(i);
  if constexpr (Kv::type == KvType::bf16) {
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

template <class Kv, int R, int NU, bool kWhole>
static void score_units(const QueryRow* rows, const Unit* units, int dim, float (*scores)[kTileKeys]) {
  f32 acc[NU][R];
#pragma GCC unroll 8
  for (int u = 0; u < NU; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[u][r] = zero();
  for (int i = 0; i < dim / Kv::kDimsPerStep; ++i)
#pragma GCC unroll 8
    for (int u = 0; u < NU; ++u)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[u][r] = score_step<Kv, kWhole>(acc[u][r], units[u], i, rows[r].query);
#pragma GCC unroll 8
  for (int u = 0; u < NU; ++u)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(scores[r] + 16 * u, acc[u][r]);
}

// Scores of keys `skip` .. num_keys - 1 of a tile, in whole units of 16.
template <class Kv, int R>
static void score_tile(const Keys& keys, const QueryRow* rows, int start, int skip, int num_keys,
                       float (*scores)[kTileKeys]) {
  const int num_units = (num_keys + 15) / 16, dim = keys.layout.head_dim;
  const bool whole = unit_keys(keys.layout) == 16;
  Unit units[kTileKeys / 16];
  int u = skip / 16;
  for (int i = u; i < num_units; ++i) units[i] = unit_at<Kv>(keys, start + 16 * i, start + skip, start + num_keys - 1);
  if (whole && u == 0 && num_units == kScoreUnits) {
    score_units<Kv, R, kScoreUnits, true>(rows, units, dim, scores);
    u = kScoreUnits;
  }
  for (; u < num_units; ++u) {
    float (*at)[kTileKeys] = reinterpret_cast<float (*)[kTileKeys]>(scores[0] + 16 * u);
    if (whole)
      score_units<Kv, R, 1, true>(rows, units + u, dim, at);
    else
      score_units<Kv, R, 1, false>(rows, units + u, dim, at);
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

// Scores of one row -> weights relative to the new maximum, 0 outside keys first .. end - 1 of the tile. Returns what
// earlier sums are scaled by.
// Where weights are rounded to bf16 (into `narrowed`), the rounded ones are summed: they add up to 1 in the end.
template <class Kv>
static float soften(float* scores, uint8_t* narrowed, int first, int end, float* maximum, float* sum) {
  if (end <= 0 || first >= kTileKeys) {
    __builtin_memset(Kv::kKeysPerStep == 2 ? static_cast<void*>(narrowed) : scores, 0, kTileKeys * Kv::kWeightElement);
    return 1.0f;
  }
  f32 lanes[kTileKeys / 16];
#pragma GCC unroll 4
  for (int v = 0; v < kTileKeys / 16; ++v) lanes[v] = scores_within(scores + 16 * v, first - 16 * v, end - 16 * v);
  const float tile_max = reduce_max(max(max(lanes[0], lanes[1]), max(lanes[2], lanes[3])));
  const float new_max = tile_max > *maximum ? tile_max : *maximum;
#pragma GCC unroll 4
  for (int v = 0; v < kTileKeys / 16; ++v) {
    lanes[v] = exp(sub(lanes[v], broadcast(new_max)));
    if constexpr (Kv::type == KvType::bf16) {
      store_bf16(narrowed + 32 * v, lanes[v]);
      lanes[v] = load_bf16(narrowed + 32 * v);
    } else {
      store(scores + 16 * v, lanes[v]);
    }
  }
  const float rescale = exp_one(*maximum - new_max);
  *sum = *sum * rescale + reduce_add(add(add(lanes[0], lanes[1]), add(lanes[2], lanes[3])));
  *maximum = new_max;
  return rescale;
}

// acc[r] = acc[r] * rescale[r] + weights[r] * V over keys `skip` .. num_keys - 1 of a tile, for `DV` vectors of
// dimensions from `first` on.
template <class Kv, int R, int DV>
static void add_values(const Keys& keys, int start, int skip, int num_keys, int first, const uint8_t* weights,
                       const float* rescale, float* acc) {
  const KvLayout& l = keys.layout;
  const int dim = l.head_dim;
  constexpr size_t kWeightStride = kTileKeys * Kv::kWeightElement;
  f32 sums[R][DV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < DV; ++v) sums[r][v] = mul(load(acc + r * dim + first + 16 * v), broadcast(rescale[r]));
  for (int key = skip; key < num_keys;) {
    const int slot = (start + key) % l.block_size;
    const int run = smaller(num_keys - key, l.block_size - slot);
    const uint8_t* tile = keys.tile(start + key) + l.tile_bytes;
    for (int j = 0; j < run; j += Kv::kKeysPerStep) {
      const uint8_t* line = tile + (static_cast<size_t>(slot + j) * static_cast<size_t>(dim) +
                                    static_cast<size_t>(first * Kv::kKeysPerStep)) *
                                       Kv::kElement;
#pragma GCC unroll 8
      for (int v = 0; v < DV; ++v) {
        if constexpr (Kv::type == KvType::bf16) {
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
    for (int v = 0; v < DV; ++v) store(acc + r * dim + first + 16 * v, sums[r][v]);
}

static void prefetch_tile(const Keys& keys, int start, int last_key) {
  const KvLayout& l = keys.layout;
  for (int key = start; key <= smaller(last_key, start + kTileKeys - 1); key += l.block_size - key % l.block_size) {
    const size_t bytes_used =
        static_cast<size_t>(smaller(l.block_size, kTileKeys)) * l.tile_bytes / static_cast<size_t>(l.block_size);
    const size_t skipped = static_cast<size_t>(key % l.block_size) * l.tile_bytes / static_cast<size_t>(l.block_size);
    const uint8_t* tile = keys.tile(key) + skipped;
    for (size_t i = 0; i < bytes_used; i += 64) {
      prefetch(tile + i);
      prefetch(tile + l.tile_bytes + i);
    }
  }
}

// Rows in the order of their positions. Of the first tile, whole units before the first row's window are skipped: their
// blocks may be gone. A row that begins later has weight 0 up to there.
template <class Kv, int R>
static void attend_rows(const Keys& keys, const QueryRow* rows, int window, int split, const Partial& partial) {
  constexpr int kVectors = kScoreUnits;
  const int dim = keys.layout.head_dim, last_key = rows[R - 1].position, unit = unit_keys(keys.layout);
  const int begin = larger(split * kSplitKeys, first_key(window, rows[0].position) / unit * unit);
  const int end = smaller((split + 1) * kSplitKeys, last_key + 1);
  alignas(64) float scores[R][kTileKeys];
  alignas(64) uint8_t narrowed[R][kTileKeys * 2];
  float rescale[R];
  for (int r = 0; r < R; ++r) {
    partial.maximum[r] = -__builtin_inff();
    partial.sum[r] = 0;
  }
  __builtin_memset(partial.acc, 0, static_cast<size_t>(R * dim) * 4);
  for (int start = begin / kTileKeys * kTileKeys; start < end; start += kTileKeys) {
    const int skip = larger(begin - start, 0), num_keys = smaller(kTileKeys, end - start);
    if (start + kTileKeys < end) prefetch_tile(keys, start + kTileKeys, end - 1);
    score_tile<Kv, R>(keys, rows, start, skip, num_keys, scores);
    for (int r = 0; r < R; ++r) {
      const int position = rows[r].position, past = smaller(kTileKeys, position + 1 - start);
      rescale[r] = soften<Kv>(scores[r], narrowed[r], first_key(window, position) - start, past, partial.maximum + r,
                              partial.sum + r);
    }
    const uint8_t* weights = Kv::kKeysPerStep == 2 ? narrowed[0] : reinterpret_cast<const uint8_t*>(scores[0]);
    int first = 0;
    for (; first + 16 * kVectors <= dim; first += 16 * kVectors)
      add_values<Kv, R, kVectors>(keys, start, skip, num_keys, first, weights, rescale, partial.acc);
    for (; first < dim; first += 16)
      add_values<Kv, R, 1>(keys, start, skip, num_keys, first, weights, rescale, partial.acc);
  }
}

struct RowPlace {
  int token, head;
};

static inline RowPlace place(const AttendArgs& a, int i) {
  const int group = a.heads / a.layout->kv_heads, row = a.first_row + i;
  return {row / group, a.kv_head * group + row % group};
}

template <class Kv>
static void attend_as(const AttendArgs& a, int split, const Partial& partial) {
  const KvLayout& l = *a.layout;
  QueryRow rows[kMaxQueryRows];
  for (int i = 0; i < a.num_rows; ++i) {
    const RowPlace at = place(a, i);
    rows[i] = {a.queries + static_cast<size_t>(at.token) * a.query_stride +
                   static_cast<size_t>(at.head * l.head_dim * Kv::kQueryElement),
               a.position + at.token};
  }
  const Keys keys{l, a.layer + static_cast<size_t>(a.kv_head) * 2 * l.tile_bytes, a.blocks};
  switch (a.num_rows) {
    case 1:
      return attend_rows<Kv, 1>(keys, rows, a.window, split, partial);
    case 2:
      return attend_rows<Kv, 2>(keys, rows, a.window, split, partial);
    case 3:
      return attend_rows<Kv, 3>(keys, rows, a.window, split, partial);
    case 4:
      return attend_rows<Kv, 4>(keys, rows, a.window, split, partial);
    case 5:
      return attend_rows<Kv, 5>(keys, rows, a.window, split, partial);
    case 6:
      return attend_rows<Kv, 6>(keys, rows, a.window, split, partial);
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
