// Weights, from rows as they lie in files to the panels that the kernels stream.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "groups.h"
#include "octavo/formats.h"

namespace octavo {
namespace {

size_t panel_size(WeightKind kind, Constants constants, int k) {
  if (is_quantised(kind)) return quants_at(kind, constants, k / kGroup);
  return static_cast<size_t>(k) * kPanel * (kind == WeightKind::bf16 ? 2 : 4);
}

// The least that groups of `format` need, as they are or rounded.
Constants constants_of(WeightKind kind, Format format) {
  if (is_affine(format) || (kind == WeightKind::q4 && is_float(format))) return Constants::scale_and_minimum;
  return has_groups(format) ? Constants::scale : Constants::wide_scale;
}

void put_f16(uint8_t* at, float value) {
  const uint16_t half = f32_to_f16(value);
  if ((half & 0x7fff) >= 0x7c00)
    throw std::invalid_argument(
        "a weight's scale does not fit 16 bits; load this checkpoint with dtype bfloat16 or float32");
  std::memcpy(at, &half, 2);
}

// No element that a group of these constants could hold is larger.
float largest_of(const Weight& target, const Group& group) {
  const int steps = target.kind == WeightKind::q4 ? 15 : 255;
  const float low = target.constants == Constants::scale_and_minimum
                        ? group.minimum - group.scale * static_cast<float>(group.zero)
                        : group.scale * static_cast<float>(-target.zero);
  return std::max(std::abs(low), std::abs(low + group.scale * static_cast<float>(steps)));
}

// Puts group `g` of column `column` into its panel. `target.zero` says what a symmetric panel subtracts.
void put_group(const Weight& target, uint8_t* panel, int column, int g, const Group& group) {
  const bool affine = target.constants == Constants::scale_and_minimum;
  uint8_t* quants = panel + quants_at(target.kind, target.constants, g);
  for (int i = 0; i < kGroup; ++i) {
    const int q = affine ? group.q[i] : group.q[i] + target.zero - group.zero;
    if (target.kind == WeightKind::q4) {
      uint8_t& byte = quants[64 * (i / 8) + 4 * column + i % 4];
      byte = static_cast<uint8_t>(i % 8 < 4 ? (byte & 0xf0) | q : (byte & 0x0f) | q << 4);
    } else {
      quants[64 * (i / 4) + 4 * column + i % 4] = static_cast<uint8_t>(q);
    }
  }
  uint8_t* constants = quants + to_constants(target.kind, target.constants, g);
  if (!std::isfinite(group.scale))
    throw std::invalid_argument("a weight's scale is not a finite number: the file is damaged");
  if (target.constants == Constants::wide_scale)
    std::memcpy(constants + 4 * column, &group.scale, 4);
  else
    put_f16(constants + 2 * column, group.scale);
  if (affine) put_f16(constants + 32 + 2 * column, group.minimum - group.scale * static_cast<float>(group.zero));
}

void put_floats(const Weight& target, uint8_t* panel, int column, const float* row) {
  for (int i = 0; i < target.k; ++i) {
    if (target.kind == WeightKind::f32) {
      reinterpret_cast<float*>(panel)[i * kPanel + column] = row[i];
    } else {
      reinterpret_cast<uint16_t*>(panel)[(i / 2 * kPanel + column) * 2 + i % 2] = f32_to_bf16(row[i]);
    }
  }
}

Group rounded_group(WeightKind kind, const float* x) {
  return kind == WeightKind::q4 ? rounded_to_nibbles(x) : rounded_to_bytes(x);
}

// Returns what `largest_of` says of its groups. `scratch` holds k floats.
float put_row(const Weight& target, uint8_t* panel, int column, const uint8_t* raw, Format format, float* scratch) {
  const bool quantised = is_quantised(target.kind);
  if (!quantised || !has_groups(format)) dequantise(format, raw, target.k, scratch);
  if (!quantised) {
    put_floats(target, panel, column, scratch);
    return 0;
  }
  float largest = 0;
  for (int g = 0; g < target.k / kGroup; ++g) {
    const Group group =
        has_groups(format) ? group_at(format, raw, g) : rounded_group(target.kind, scratch + kGroup * g);
    put_group(target, panel, column, g, group);
    largest = std::max(largest, largest_of(target, group));
  }
  return largest;
}

}  // namespace

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) munmap(chunk.data, chunk.size);
}

uint8_t* Arena::take(size_t size) {
  constexpr size_t kHugePage = size_t{2} << 20, kChunk = size_t{32} << 20, kLine = 64;
  size = (size + kLine - 1) / kLine * kLine;
  if (chunks_.empty() || chunks_.back().size - used_ < size) {
    const size_t bytes = std::max(kChunk, (size + kHugePage - 1) / kHugePage * kHugePage);
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    madvise(data, bytes, MADV_HUGEPAGE);  // a hint; the kernel may refuse it
    chunks_.push_back({static_cast<uint8_t*>(data), bytes});
    used_ = 0;
  }
  uint8_t* at = chunks_.back().data + used_;
  used_ += size;
  return at;
}

PackedWeight::PackedWeight(Arena& arena, WeightKind kind, const std::vector<Format>& formats, int n, int k) {
  const bool quantised = is_quantised(kind);
  if (n <= 0 || k <= 0 || k % (quantised ? kGroup : kPanel))
    throw std::invalid_argument("a " + std::to_string(n) + " x " + std::to_string(k) +
                                " matrix cannot be packed: its rows must be a multiple of " +
                                std::to_string(quantised ? kGroup : kPanel) + " long");
  Constants constants = Constants::scale;
  for (Format format : formats) constants = std::max(constants, constants_of(kind, format));
  const bool symmetric = quantised && constants != Constants::scale_and_minimum;
  const int zero = !symmetric ? 0 : kind == WeightKind::q4 ? 8 : 128;
  weight_ = {kind, constants, zero, n, k, panel_size(kind, constants, k), nullptr, 0.0f};
  size_ = static_cast<size_t>((n + kPanel - 1) / kPanel) * weight_.panel_bytes;
  weight_.data = data_ = arena.take(size_);
}

void PackedWeight::pack(Pool& pool, const uint8_t* raw, size_t raw_size, Format format, int rows, int first_panel,
                        int panel_step) {
  const Weight& w = weight_;
  const size_t stride = row_bytes(format, w.k);
  const int panels = (rows + kPanel - 1) / kPanel, last = first_panel + (panels - 1) * panel_step;
  if (raw_size != stride * static_cast<size_t>(rows))
    throw std::invalid_argument("a tensor has " + std::to_string(raw_size) + " bytes, its shape needs " +
                                std::to_string(stride * static_cast<size_t>(rows)));
  if (first_panel < 0 || panel_step < 1 || last >= (w.n + kPanel - 1) / kPanel)
    throw std::invalid_argument("rows outside the packed matrix");
  if (w.kind == WeightKind::q4 && natural_kind(format) != WeightKind::q4 && !is_float(format))
    throw std::invalid_argument("only 4-bit formats and floats can be packed to 4 bits");
  if (is_quantised(w.kind) && constants_of(w.kind, format) > w.constants)
    throw std::invalid_argument("a matrix made for other formats has no room for this one's scales and minima");
  std::vector<std::vector<float>> scratch(static_cast<size_t>(pool.num_threads()));
  std::vector<std::string> errors(static_cast<size_t>(pool.num_threads()));
  std::vector<float> largest(static_cast<size_t>(pool.num_threads()), weight_.largest);
  pool.each(panels, [&](int i, int thread) {
    std::vector<float>& floats = scratch[static_cast<size_t>(thread)];
    floats.resize(static_cast<size_t>(w.k));
    uint8_t* panel = data_ + static_cast<size_t>(first_panel + i * panel_step) * w.panel_bytes;
    std::memset(panel, 0, w.panel_bytes);
    try {
      float& most = largest[static_cast<size_t>(thread)];
      for (int c = 0; c < kPanel && i * kPanel + c < rows; ++c)
        most = std::max(
            most, put_row(w, panel, c, raw + static_cast<size_t>(i * kPanel + c) * stride, format, floats.data()));
    } catch (const std::exception& e) {
      errors[static_cast<size_t>(thread)] = e.what();
    }
  });
  for (const std::string& error : errors)
    if (!error.empty()) throw std::invalid_argument(error);
  weight_.largest = *std::max_element(largest.begin(), largest.end());
}

}  // namespace octavo
