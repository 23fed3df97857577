// Decoding of file formats (GGML's block layouts: ggml-common.h describes them) into groups of 32 and into floats.
#include "octavo/formats.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "groups.h"

namespace octavo {
namespace {

struct FormatInfo {
  const char* name;
  int block, bytes;
};
constexpr FormatInfo kFormats[] = {{"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},    {"Q4_0", 32, 18},
                                   {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},  {"Q8_0", 32, 34},
                                   {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};

const FormatInfo& info(Format format) { return kFormats[static_cast<int>(format)]; }

template <class T>
T read(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

float read_f16(const uint8_t* p) { return f16_to_f32(read<uint16_t>(p)); }

// The 6-bit scale and minimum of group j (0 .. 7) of a K block, from its 12 packed bytes.
void k_scale(const uint8_t* p, int j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = p[j] & 63;
    *minimum = p[j + 4] & 63;
  } else {
    *scale = (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    *minimum = p[j + 4] >> 4 | (p[j] >> 6) << 4;
  }
}

void k_group(const uint8_t* block, int j, const uint8_t* quants, const uint8_t* fifth_bits, Group* g) {
  int scale, minimum;
  k_scale(block + 4, j, &scale, &minimum);
  g->scale = read_f16(block) * static_cast<float>(scale);
  g->minimum = -(read_f16(block + 2) * static_cast<float>(minimum));
  for (int i = 0; i < 32; ++i) {
    const int byte = quants[32 * (j / 2) + i];
    g->q[i] = static_cast<uint8_t>((j % 2 ? byte >> 4 : byte & 15) | (fifth_bits ? (fifth_bits[i] >> j & 1) << 4 : 0));
  }
}

void halves(const uint8_t* quants, Group* g) {
  for (int i = 0; i < 16; ++i) {
    g->q[i] = quants[i] & 15;
    g->q[i + 16] = quants[i] >> 4;
  }
}

void fifth(uint32_t bits, Group* g) {
  for (int i = 0; i < 32; ++i) g->q[i] = static_cast<uint8_t>(g->q[i] | (bits >> i & 1) << 4);
}

void q6_k(const uint8_t* block, float* out) {
  const uint8_t *low = block, *high = block + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = read_f16(block + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128)
    for (int i = 0; i < 32; ++i)
      for (int part = 0; part < 4; ++part) {
        const int nibble = part < 2 ? low[i + 32 * part] & 15 : low[i + 32 * (part - 2)] >> 4;
        const int q = (nibble | (high[i] >> (2 * part) & 3) << 4) - 32;
        out[i + 32 * part] = d * static_cast<float>(scales[i / 16 + 2 * part]) * static_cast<float>(q);
      }
}

}  // namespace

float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
  uint32_t bits;
  if (rest >= 0x7c00)
    bits = sign | 0x7f800000u | (rest & 0x3ff) << 13;
  else if (rest >= 0x0400)
    bits = sign | ((rest << 13) + 0x38000000u);
  else {
    const float value = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -value : value;
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

uint16_t f32_to_f16(float value) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (rest < 0x38800000)
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::lrintf(std::fabs(value) * 0x1p24f)));
  return static_cast<uint16_t>(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

uint16_t f32_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

Format format_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(sizeof(kFormats) / sizeof(kFormats[0])); ++i)
    if (name == kFormats[i].name) return static_cast<Format>(i);
  throw std::invalid_argument("unknown tensor format " + name);
}

size_t row_bytes(Format format, int k) {
  const FormatInfo& f = info(format);
  if (k % f.block)
    throw std::invalid_argument(std::string(f.name) + " rows must be a multiple of " + std::to_string(f.block) +
                                " long, got " + std::to_string(k));
  return static_cast<size_t>(k / f.block) * static_cast<size_t>(f.bytes);
}

WeightKind natural_kind(Format format) {
  switch (format) {
    case Format::Q4_0:
    case Format::Q4_1:
    case Format::Q4_K:
      return WeightKind::q4;
    case Format::Q5_0:
    case Format::Q5_1:
    case Format::Q8_0:
    case Format::Q5_K:
    case Format::Q6_K:
      return WeightKind::q8;
    case Format::F32:
      return WeightKind::f32;
    default:
      return WeightKind::bf16;
  }
}

bool is_affine(Format format) {
  return format == Format::Q4_1 || format == Format::Q5_1 || format == Format::Q4_K || format == Format::Q5_K;
}

bool is_float(Format format) { return info(format).block == 1; }

bool has_groups(Format format) { return info(format).block > 1 && format != Format::Q6_K; }

Group group_at(Format format, const uint8_t* row, int index) {
  Group g{};
  const FormatInfo& f = info(format);
  const int in_block = f.block / kGroup;
  const uint8_t* block = row + static_cast<size_t>(index / in_block) * static_cast<size_t>(f.bytes);
  g.scale = read_f16(block);
  switch (format) {
    case Format::Q4_0:
      halves(block + 2, &g);
      g.zero = 8;
      break;
    case Format::Q4_1:
      halves(block + 4, &g);
      g.minimum = read_f16(block + 2);
      break;
    case Format::Q5_0:
      halves(block + 6, &g);
      fifth(read<uint32_t>(block + 2), &g);
      g.zero = 16;
      break;
    case Format::Q5_1:
      halves(block + 8, &g);
      fifth(read<uint32_t>(block + 4), &g);
      g.minimum = read_f16(block + 2);
      break;
    case Format::Q8_0:
      for (int i = 0; i < 32; ++i) g.q[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
      g.zero = 128;
      break;
    case Format::Q4_K:
      k_group(block, index % 8, block + 16, nullptr, &g);
      break;
    case Format::Q5_K:
      k_group(block, index % 8, block + 48, block + 16, &g);
      break;
    default:
      throw std::invalid_argument(std::string(f.name) + " has no groups of 32");
  }
  return g;
}

void dequantise(Format format, const uint8_t* raw, int count, float* out) {
  switch (format) {
    case Format::F32:
      std::memcpy(out, raw, static_cast<size_t>(count) * 4);
      return;
    case Format::F16:
      for (int i = 0; i < count; ++i) out[i] = read_f16(raw + 2 * i);
      return;
    case Format::BF16:
      for (int i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(raw + 2 * i)) << 16;
        std::memcpy(out + i, &bits, 4);
      }
      return;
    case Format::Q6_K:
      for (int i = 0; i < count; i += 256) q6_k(raw + i / 256 * 210, out + i);
      return;
    default:
      break;
  }
  for (int g = 0; g < count / kGroup; ++g) {
    const Group group = group_at(format, raw, g);
    for (int i = 0; i < kGroup; ++i)
      out[kGroup * g + i] = group.scale * static_cast<float>(group.q[i] - group.zero) + group.minimum;
  }
}

}  // namespace octavo
