// Element formats of files, and how weights are packed from them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octavo/kernels.h"
#include "octavo/pool.h"

namespace octavo {

enum class Format : int { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

// Throws std::invalid_argument for a name that is not one of the above.
Format format_named(const std::string& name);
size_t row_bytes(Format format, int k);  // throws where k is not a multiple of the format's block

// Memory for many matrices side by side, in huge pages: a step streams all of it, and a page walk for each 4 KiB would
// cost as much as reading them.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed, aligned to 64 bytes, and there until the arena ends. Throws std::bad_alloc.
  uint8_t* take(size_t size);

 private:
  struct Chunk {
    uint8_t* data;
    size_t size;
  };
  std::vector<Chunk> chunks_;
  size_t used_ = 0;  // of the last chunk
};

// A packed matrix in an arena, which outlives it. Filled by `pack`, read as `view()`.
class PackedWeight {
 public:
  // `formats`: all that will be packed into it, as they decide which constants a group of q4 or q8 has. n is rounded up
  // to whole panels with rows of zeros.
  PackedWeight(Arena& arena, WeightKind kind, const std::vector<Format>& formats, int n, int k);

  // Packs `rows` rows, given in `format`, into panels first_panel, first_panel + panel_step, ...
  // Where the target is q8 and the source is a float or Q6_K format, each group of 32 is rounded to 8 bits; where it is
  // q4 with minima and the source a float format, to 4 bits.
  // Throws std::invalid_argument where sizes do not match, q4 is asked of another format with more than 4 bits,
  // `format` needs other constants than the matrix has, or a number that is rounded is not finite.
  void pack(Pool& pool, const uint8_t* raw, size_t raw_size, Format format, int rows, int first_panel, int panel_step);

  const Weight& view() const { return weight_; }
  size_t size() const { return size_; }

 private:
  Weight weight_;
  size_t size_;
  uint8_t* data_;
};

// The kind that holds `format` without loss, two apart: Q6_K, whose groups of 16 become groups of 32 in 8 bits, and
// F16, which becomes bf16 with three bits less.
WeightKind natural_kind(Format format);
bool is_affine(Format format);
bool is_float(Format format);  // F32, F16 or BF16

// `count` elements, a multiple of the block, as float32: the arithmetic of GGML's formats.
void dequantise(Format format, const uint8_t* raw, int count, float* out);

float f16_to_f32(uint16_t half);
uint16_t f32_to_f16(float value);
uint16_t f32_to_bf16(float value);

}  // namespace octavo
