// Work on single rows: RMSNorm, activation formats for the matrix products, embedding lookup.
// Part of one instruction set's namespace. Row lengths are multiples of 16.

// An activation row:
//   for q4, q8:  a QuantisedGroup for each group of 32
//   for bf16:    bf16 [k] where the instruction set multiplies bf16, else f32 [k]
//   for f32:     f32 [k]

// All that a product needs of a group, side by side: a row is one stream, and a tile holds one address for each row.
struct QuantisedGroup {
  int8_t q[kGroup];
  float scale, scaled_sum;   // scaled_sum = scale * sum
  int32_t less_8, less_128;  // sum of q, times -8 and -128
};

static size_t activation_stride(WeightKind kind, int k) {
  size_t size = static_cast<size_t>(k) * 4;
  if (is_quantised(kind)) size = static_cast<size_t>(k / kGroup) * sizeof(QuantisedGroup);
  if (kind == WeightKind::bf16 && kBf16Activations) size = static_cast<size_t>(k) * 2;
  return (size + 63) / 64 * 64;
}

[[maybe_unused]] static int rows_of_part(WeightKind, int) { return 64; }  // amx has its own

static void quantise_row(const float* x, int k, QuantisedGroup* row) {
  for (int g = 0; g < k / kGroup; ++g) {
    f32 a = load(x + kGroup * g), b = load(x + kGroup * g + 16);
    float largest = reduce_max(max(abs(a), abs(b)));
    float scale = largest / 127.0f;
    f32 inverse = broadcast(largest > 0 ? 127.0f / largest : 0.0f);
    i32 qa = to_int(mul(a, inverse)), qb = to_int(mul(b, inverse));
    store_narrow(row[g].q, qa);
    store_narrow(row[g].q + 16, qb);
    int32_t sum = reduce_add_int(add_int(qa, qb));
    row[g].scale = scale;
    row[g].less_8 = -8 * sum;
    row[g].less_128 = -128 * sum;
    row[g].scaled_sum = scale * static_cast<float>(sum);
  }
}

static float mean_square(const float* x, int k) {
  f32 total = zero();
  for (int i = 0; i < k; i += 16) total = fma(load(x + i), load(x + i), total);
  return reduce_add(total) / static_cast<float>(k);
}

static void prepare_plain(WeightKind kind, const float* x, int k, uint8_t* row) {
  if (is_quantised(kind)) {
    quantise_row(x, k, reinterpret_cast<QuantisedGroup*>(row));
  } else if (kind == WeightKind::bf16 && kBf16Activations) {
    for (int i = 0; i < k; i += 16) store_bf16(row + 2 * i, load(x + i));
  } else {
    __builtin_memcpy(row, x, static_cast<size_t>(k) * 4);
  }
}

static void prepare(WeightKind kind, const float* x, const float* norm, float eps, int k, uint8_t* row) {
  if (!norm) return prepare_plain(kind, x, k, row);
  const f32 scale = broadcast(1.0f / __builtin_sqrtf(mean_square(x, k) + eps));
  float* normalised = static_cast<float*>(__builtin_alloca(static_cast<size_t>(k) * 4));
  for (int i = 0; i < k; i += 16) store(normalised + i, mul(mul(load(x + i), scale), load(norm + i)));
  prepare_plain(kind, normalised, k, row);
}

static inline float one_f16(const uint8_t* p) {
  float lanes[16];
  uint8_t padded[32] = {};
  __builtin_memcpy(padded, p, 2);
  store(lanes, load_f16(padded));
  return lanes[0];
}

// Row `row` of the matrix in float32: how embeddings are looked up in a packed table.
static void gather_row(const Weight& w, int row, float* out) {
  const uint8_t* panel = w.data + static_cast<size_t>(row / kPanel) * w.panel_bytes;
  const int column = row % kPanel, groups = w.k / kGroup;
  if (w.kind == WeightKind::f32 || w.kind == WeightKind::bf16) {
    for (int i = 0; i < w.k; ++i) {
      if (w.kind == WeightKind::f32) {
        out[i] = reinterpret_cast<const float*>(panel)[i * kPanel + column];
      } else {
        uint32_t bits = reinterpret_cast<const uint16_t*>(panel)[(i / 2 * kPanel + column) * 2 + i % 2];
        bits <<= 16;
        __builtin_memcpy(out + i, &bits, 4);
      }
    }
    return;
  }
  const bool affine = w.constants == Constants::scale_and_minimum;
  for (int g = 0; g < groups; ++g) {
    const uint8_t* group = panel + quants_at(w.kind, w.constants, g);
    const uint8_t* constants = group + to_constants(w.kind, w.constants, g);
    const float scale = w.constants == Constants::wide_scale ? reinterpret_cast<const float*>(constants)[column]
                                                             : one_f16(constants + 2 * column);
    const float minimum = affine ? one_f16(constants + 32 + 2 * column) : 0.0f;
    for (int i = 0; i < kGroup; ++i) {
      int q;
      if (w.kind == WeightKind::q4) {
        uint8_t byte = group[64 * (i / 8) + 4 * column + i % 4];
        q = i % 8 < 4 ? byte & 15 : byte >> 4;
      } else {
        q = group[64 * (i / 4) + 4 * column + i % 4];
      }
      out[kGroup * g + i] = affine ? scale * static_cast<float>(q) + minimum : scale * static_cast<float>(q - w.zero);
    }
  }
}
