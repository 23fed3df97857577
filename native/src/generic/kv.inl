// The KV cache: its number formats, and how a token's keys and values are rotated, rounded and stored.
// Part of one instruction set's namespace. Head dimensions are multiples of 16.

struct KvBf16 {
  using Sum = f32;
  static constexpr KvType type = KvType::bf16;
  static constexpr int kElement = 2, kDimsPerStep = 2, kKeysPerStep = 2, kQueryElement = 2, kWeightElement = 2;
};
struct KvF16 {
  using Sum = f32;
  static constexpr KvType type = KvType::f16;
  static constexpr int kElement = 2, kDimsPerStep = 1, kKeysPerStep = 1, kQueryElement = 4, kWeightElement = 4;
};
struct KvF32 {
  using Sum = f32;
  static constexpr KvType type = KvType::f32;
  static constexpr int kElement = 4, kDimsPerStep = 1, kKeysPerStep = 1, kQueryElement = 4, kWeightElement = 4;
};
// Products are exact in integers: of bytes of the cache, and words of a query or of weights. A query head is its words,
// then its scale.
struct KvInt8 {
  using Sum = i32;
  static constexpr KvType type = KvType::int8;
  static constexpr int kElement = 1, kDimsPerStep = 4, kKeysPerStep = 4, kQueryElement = 4, kWeightElement = 2;
};

inline constexpr float kByteLimit = 127.0f, kWordLimit = 32767.0f;
inline constexpr float kSmallest = 1e-30f;  // a row of nothing larger is zeros: its inverse scale would overflow

static inline int unit_keys(const KvLayout& layout) { return smaller(layout.block_size, 16); }

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

// A row as integers of -limit .. limit: x * inverse, rounded, each times `scale`. Where anything in the row is not
// finite the scale is not either, so that nobody takes it for numbers.
struct Steps {
  float inverse, scale;
};

static inline Steps steps_of(float largest, float poison, float limit) {
  return {largest > kSmallest ? limit / largest : 0.0f, largest / limit + poison};
}

static Steps steps_of_row(const float* x, int n, float limit) {
  f32 largest = zero(), poison = zero();
  for (int i = 0; i < n; i += 16) {
    largest = max(largest, abs(load(x + i)));
    poison = fma(load(x + i), zero(), poison);
  }
  return steps_of(reduce_max(largest), reduce_add(poison), limit);
}

static void quantise_query(const float* x, int n, uint8_t* out) {
  const Steps steps = steps_of_row(x, n, kWordLimit);
  for (int i = 0; i < n; i += 16) store_words(out + 2 * i, to_int(mul(load(x + i), broadcast(steps.inverse))));
  __builtin_memcpy(out + 2 * n, &steps.scale, 4);
}

// Where the elements 0 .. 3 of four stand (see KvLayout).
static inline int place_of_four(int i) { return (i & 1) << 1 | i >> 1; }

static float quantise_bytes(const float* x, int n, int8_t* out) {
  const Steps steps = steps_of_row(x, n, kByteLimit);
  for (int i = 0; i < n; i += 16) store_narrow(out + i, to_int(mul(load(x + i), broadcast(steps.inverse))));
  return steps.scale;
}

static inline float* scales_of(const KvLayout& l, uint8_t* tile) {
  return reinterpret_cast<float*>(tile + l.block_size * l.head_dim);
}

static void store_key_bytes(const KvLayout& l, const float* key, int slot, int8_t* narrowed, uint8_t* tile) {
  const int unit = unit_keys(l), dim = l.head_dim;
  scales_of(l, tile)[slot] = quantise_bytes(key, dim, narrowed);
  uint8_t* at = tile + slot / unit * unit * dim + slot % unit * 4;
  for (int i = 0; i < dim; i += 4, at += 4 * unit) {
    uint32_t four;
    __builtin_memcpy(&four, narrowed + i, 4);
    four = (four & 0xff0000ffu) | (four & 0xff00u) << 8 | (four >> 8 & 0xff00u);
    __builtin_memcpy(at, &four, 4);
  }
}

static void store_value_bytes(const KvLayout& l, const float* value, int slot, int8_t* narrowed, uint8_t* tile) {
  const int dim = l.head_dim, shift = 8 * place_of_four(slot % 4);
  scales_of(l, tile)[slot] = quantise_bytes(value, dim, narrowed);
  uint8_t* at = tile + slot / 4 * 4 * dim;
  for (int i = 0; i < dim; i += 16) merge_lanes(at + 4 * i, load_narrow(narrowed + i), shift, 0xffu << shift);
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
  uint8_t* at = tile + static_cast<size_t>(slot / step) * static_cast<size_t>(dim * step * Kv::kElement);
  if constexpr (Kv::kKeysPerStep == 1) {
    __builtin_memcpy(at, value, static_cast<size_t>(dim) * Kv::kElement);
  } else {
    const int shift = 16 * (slot % 2);
    for (int i = 0; i < dim; i += 16) merge_lanes(at + 4 * i, load_words(value + 2 * i), shift, 0xffffu << shift);
  }
}

template <class Kv>
static void rope_store_as(const RopeStoreArgs& a) {
  const KvLayout& l = *a.layout;
  const int dim = l.head_dim, group = a.heads / l.kv_heads;
  float* head = static_cast<float*>(__builtin_alloca(static_cast<size_t>(dim) * 4));
  uint8_t* narrowed = static_cast<uint8_t*>(__builtin_alloca(static_cast<size_t>(dim) * 4));
  for (int h = a.first_kv_head * group; h < a.last_kv_head * group; ++h) {
    __builtin_memcpy(head, a.qkv + h * dim, static_cast<size_t>(dim) * 4);
    rotate(head, a.cos_sin, a.rope_dim);
    for (int i = 0; i < dim; i += 16) store(head + i, mul(load(head + i), broadcast(a.scale)));
    uint8_t* out = a.query + static_cast<size_t>(h) * static_cast<size_t>(dim * Kv::kQueryElement);
    if constexpr (Kv::type == KvType::int8)
      quantise_query(head, dim, out);
    else if constexpr (Kv::type == KvType::bf16)
      narrow<Kv>(head, dim, out);
    else
      __builtin_memcpy(out, head, static_cast<size_t>(dim) * 4);
  }
  uint8_t* block = a.layer + static_cast<size_t>(a.block) * l.block_bytes;
  block += static_cast<size_t>(a.first_kv_head) * 2 * l.tile_bytes;
  for (int h = a.first_kv_head; h < a.last_kv_head; ++h, block += 2 * l.tile_bytes) {
    __builtin_memcpy(head, a.qkv + (a.heads + h) * dim, static_cast<size_t>(dim) * 4);
    rotate(head, a.cos_sin, a.rope_dim);
    const float* value = a.qkv + (a.heads + l.kv_heads + h) * dim;
    if constexpr (Kv::type == KvType::int8) {
      store_key_bytes(l, head, a.slot, reinterpret_cast<int8_t*>(narrowed), block);
      store_value_bytes(l, value, a.slot, reinterpret_cast<int8_t*>(narrowed), block + l.tile_bytes);
    } else {
      narrow<Kv>(head, dim, narrowed);
      store_key<Kv>(l, narrowed, a.slot, block);
      narrow<Kv>(value, dim, narrowed);
      store_value<Kv>(l, narrowed, a.slot, block + l.tile_bytes);
    }
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
    case KvType::int8:
      return rope_store_as<KvInt8>(a);
  }
}
