// Element formats of files, and how weights are packed from them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "octavo/kernels.h"
#include "octavo/pool.h"

namespace octavo {

enum class Format : int { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

// Throws std::invalid_argument for a name that is not one of the above.
Format format_named(const std::string& name);
size_t row_bytes(Format format, int k);  // throws where k is not a multiple of the format's block

// A packed matrix that owns its memory. Filled by `pack`, read as `view()`.
class PackedWeight {
 public:
  // `affine` holds for q4 and q8 only. n is rounded up to whole panels with rows of zeros.
  PackedWeight(WeightKind kind, bool affine, int n, int k);

  // Packs `rows` rows, given in `format`, into panels first_panel, first_panel + panel_step, ...
  // Where the target is q4 or q8 and the source is a float or Q6_K format, each group of 32 is rounded to 8 bits.
  // Throws std::invalid_argument where sizes do not match, or q4 is asked of a format with more than 4 bits.
  void pack(Pool& pool, const uint8_t* raw, size_t raw_size, Format format, int rows, int first_panel, int panel_step);

  const Weight& view() const { return weight_; }
  size_t size() const { return size_; }

 private:
  Weight weight_;
  size_t size_;
  struct Free {
    void operator()(uint8_t* p) const;
  };
  std::unique_ptr<uint8_t, Free> data_;
};

// The kind that holds `format` without loss (Q6_K apart, whose groups of 16 become groups of 32 in 8 bits).
WeightKind natural_kind(Format format);
bool is_affine(Format format);

// `count` elements, a multiple of the block, as float32: the arithmetic of GGML's formats.
void dequantise(Format format, const uint8_t* raw, int count, float* out);

float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);
uint16_t f32_to_bf16(float value);

}  // namespace octavo
