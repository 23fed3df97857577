// The seam between the runtime and the instruction sets: plain views and a table of functions.
//
// Every row of every result is computed in an order that depends on the row's own length alone, so a row gives the same
// bits alone, in a batch, in a chunk of a prompt, and on any number of threads. Lanes are outputs, never partial sums
// of one output, except in the reductions over one row (norms, maxima), whose order is fixed.
#pragma once
#include <cstddef>
#include <cstdint>

#include "octavo/sample.h"

namespace octavo {

inline constexpr int kPanel = 16;        // columns (outputs) that are computed side by side
inline constexpr int kGroup = 32;        // elements along K that share a scale
inline constexpr int kRowTile = 16;      // rows of activations that may be read at once
inline constexpr int kTileKeys = 64;     // keys between two rescalings of the online softmax
inline constexpr int kSplitKeys = 512;   // keys of one partial attention; a multiple of kTileKeys
inline constexpr int kMaxInt8Dim = 512;  // of a head: 512 products of a word and a byte fit 32 bits

enum class WeightKind : int { q4, q8, bf16, f32 };
// Of a group: f16 scale; f32 scale, where 16 bits do not hold it; f16 scale and f16 minimum.
enum class Constants : int { scale, wide_scale, scale_and_minimum };
enum class KvType : int { f32, bf16, f16, int8 };
enum class Epilogue : int { store, add, swiglu };

// A matrix [n, k] in panels of kPanel rows; the last panel is padded with zeros.
//   q4:   per group  nibbles [4][64], constants
//         byte c*4+t of a line j: low nibble = element 8j+t of column c, high nibble = element 8j+4+t
//   q8:   per group  bytes [8][64], constants; byte c*4+t of line j = element 4j+t of column c
//         constants are a line of [16] each; where half a line is enough, two groups have one between them
//   bf16: [k/2][16][2]   f32: [k][16]
// A quantised element is scale * (q - zero), or scale * q + minimum. A panel is one stream of whole cache lines, in the
// order in which it is read.
struct Weight {
  WeightKind kind;
  Constants constants;  // of q4 (never wide_scale) and q8
  int zero;
  int n, k;
  size_t panel_bytes;
  const uint8_t* data;
  float largest;  // of q4 and q8: no element that a group could hold is larger
};

// In groups with scales, where others are floats. Static, as files of different instruction sets share no function.
static constexpr bool is_quantised(WeightKind kind) { return kind == WeightKind::q4 || kind == WeightKind::q8; }

// Where a panel of q4 or q8 has what.
static constexpr int quant_bytes(WeightKind kind) { return kPanel * kGroup / (kind == WeightKind::q4 ? 2 : 1); }
static constexpr int constant_bytes(Constants constants) { return constants == Constants::scale ? 32 : 64; }

// Do the constants of group `g` stand before its quants? Where they take half a line, every second group's do.
static constexpr bool turned(Constants constants, int g) { return constants == Constants::scale && (g & 1); }

// From the quants of group `g` to its constants, and to the next group's quants.
static constexpr int to_constants(WeightKind kind, Constants constants, int g) {
  return turned(constants, g) ? -constant_bytes(constants) : quant_bytes(kind);
}
static constexpr int to_next(WeightKind kind, Constants constants, int g) {
  return quant_bytes(kind) + (turned(constants, g) ? 0 : 64);
}

// The quants of group `g`; of the number of groups, the end.
static constexpr size_t quants_at(WeightKind kind, Constants constants, int g) {
  const int own = quant_bytes(kind) + constant_bytes(constants);
  return static_cast<size_t>(g) * static_cast<size_t>(own) +
         (turned(constants, g) ? 64 - constant_bytes(constants) : 0);
}

// Memory that a later stage reads: bytes first .. last - 1 of blocks of `block_bytes` that stand side by side in
// `blocks`, counted from `base` on. While products are computed, memory is idle: some of these lines are asked for.
struct ReadLater {
  const uint8_t* base;
  const int32_t* blocks;
  size_t block_bytes, first, last;
};

// out[row, :] (+)= weight * activation[row]; swiglu: panels alternate gate and up, out has half the columns.
struct MatmulArgs {
  const Weight* weight;
  // rows of `activation_stride(kind, k)` bytes, written by `prepare`; readable up to a multiple of kRowTile rows
  const uint8_t* activations;
  int rows;
  float* out;
  size_t out_stride;  // floats; at least n rounded up to whole panels (half of it for swiglu)
  Epilogue epilogue;
  ReadLater later;  // nothing where `first` is `last`; a kernel set may ignore it
  // swiglu, where the set gates rows for `reader`: `gated` gets them as `prepare` would make them of `out`, which is
  // not written. Or null.
  const Weight* reader;
  uint8_t* gated;
};

// KV of one layer: [block][kv_head] { K tile, V tile }. U = min(block_size, 16) keys stand side by side in a K tile.
//   K bf16: [block_size/U][dim/2][U][2]   K f32, f16: [block_size/U][dim][U]
//   V bf16: [block_size/2][dim][2]        V f32, f16: [block_size][dim]
//   K int8: [block_size/U][dim/4][U][4]   V int8: [block_size/4][dim][4]   behind each of them f32 scale [block_size]
// An int8 element is its token's and head's scale times an integer of -127 .. 127. Of four that stand together (of a
// key's dimensions, of a dimension's values) the order is 0, 2, 1, 3: those in even places widen to words of 0 and 1.
struct KvLayout {
  KvType type;
  int block_size, kv_heads, head_dim;
  size_t tile_bytes;   // of one K or V tile
  size_t block_bytes;  // kv_heads * 2 * tile_bytes
  int block_shift;     // block_size is 1 << block_shift
};

// Static, as files of different instruction sets share no function.
static inline size_t kv_element_bytes(KvType type) { return type == KvType::f32 ? 4 : type == KvType::int8 ? 1 : 2; }

// Bytes of a K or V tile of `tokens` tokens: what all sizes of the cache are made of.
static inline size_t kv_tile_bytes(KvType type, int tokens, int head_dim) {
  const size_t scales = type == KvType::int8 ? sizeof(float) : 0;
  return static_cast<size_t>(tokens) * (static_cast<size_t>(head_dim) * kv_element_bytes(type) + scales);
}

static inline KvLayout kv_layout(KvType type, int block_size, int kv_heads, int head_dim) {
  const size_t tile = kv_tile_bytes(type, block_size, head_dim);
  return {type,
          block_size,
          kv_heads,
          head_dim,
          tile,
          tile * 2 * static_cast<size_t>(kv_heads),
          __builtin_ctz(static_cast<unsigned>(block_size))};
}

// One row of a step: rotate q and k, put q (scaled) into the query buffer and k, v into the cache: those of KV heads
// first_kv_head .. last_kv_head - 1, and of the query heads that share them.
struct RopeStoreArgs {
  const KvLayout* layout;
  uint8_t* layer;        // block 0 of this layer
  const float* qkv;      // [heads + 2 * kv_heads][head_dim]
  const float* cos_sin;  // cos [rope_dim/2], then sin [rope_dim/2], of this row's position
  uint8_t* query;        // [heads][head_dim], at most 4 bytes an element: bf16 where the cache is bf16, words and their
                         // scale where it is int8, else f32
  int heads, rope_dim;
  float scale;
  int block, slot;
  int first_kv_head, last_kv_head;
};

// Query rows that share a KV head: rows of one request, token-major: row i is token i / group, head i % group.
struct AttendArgs {
  const KvLayout* layout;
  const uint8_t* layer;
  const int32_t* blocks;   // the request's block table in the layer's group
  const uint8_t* queries;  // query row of the first token: [heads][head_dim]
  size_t query_stride;     // bytes between tokens
  float* out;              // [heads * head_dim] of the first token
  size_t out_stride;       // floats between tokens
  int heads, kv_head;
  int position;             // of the first token
  int first_row, num_rows;  // num_rows <= query_rows(layout)
  int window;               // keys that a row attends to, the last of them its own; 0: all
  // What this thread attends to next, as far as that is known: it is asked for in time. Or null.
  const AttendArgs* next;
};

// The first key that a row at `position` attends to. Blocks that lie wholly before it are not read. Static, as files of
// different instruction sets share no function.
static inline int first_key(int window, int position) {
  return window && position >= window ? position - window + 1 : 0;
}

// A partial softmax-weighted sum over one split of the keys: acc [rows][head_dim], maximum [rows], sum [rows].
struct Partial {
  float* acc;
  float* maximum;
  float* sum;
};

struct Kernels {
  const char* name;
  int rows_at_once;  // that go through all layers together: few enough that what one stage writes is near for the next
  int (*rows_of_part)(WeightKind kind, int k);  // fewer are not worth another pass over quantised weights
  size_t (*activation_stride)(WeightKind kind, int k);
  // activation <- x, or x normalised (RMSNorm: x / rms(x) * norm) where norm is not null
  void (*prepare)(WeightKind kind, const float* x, const float* norm, float eps, int k, uint8_t* activation);
  void (*matmul)(const MatmulArgs& args, int first_panel, int last_panel);
  bool gates_rows;  // can swiglu write rows of activations? See gates_rows_for
  void (*gather_row)(const Weight& weight, int row, float* out);
  void (*rope_store)(const RopeStoreArgs& args);
  int (*query_rows)(const KvLayout& layout);  // that share one reading of the keys, at most
  void (*attend_split)(const AttendArgs& args, int split, const Partial& partial);
  // merges the splits of each row in order, from its first key's on, and writes the normalised rows
  void (*attend_merge)(const AttendArgs& args, const Partial* partials, int num_splits);
  // maxima <- the highest of each kSampleChunk logits; the first is NaN where any logit is not finite
  void (*chunk_maxima)(const float* logits, int count, float* maxima);
  // of logits with their maxima, which come from one call for all of them, or from one for each part of whole chunks
  SampleStatus (*sample)(const float* logits, const float* maxima, int vocab, const SampleSpec& spec,
                         SampleScratch& scratch, Scored* drawn, Alternative* alternatives);
  SampleStatus (*score)(const float* logits, const float* maxima, int vocab, const ScoreSpec& spec,
                        SampleScratch& scratch, Scored* scored, Alternative* alternatives);
  // limits.h: reads memory in order; computes dot products from registers, and returns how many operations that were
  float (*read_all)(const uint8_t* data, size_t size);
  double (*spin_dots)(WeightKind kind, int rounds, float* result);
};

// Are the rows that swiglu makes for this weight written as activations at once? Static, as files of different
// instruction sets share no function.
static inline bool gates_rows_for(const Kernels& kernels, const Weight& reader) {
  return kernels.gates_rows && reader.kind != WeightKind::f32 && reader.k % kGroup == 0;
}

// Kernel sets in order of preference, each with what it asks of the machine.
struct Candidate {
  const char* name;
  const Kernels* kernels;    // null: not built for this machine
  const char* (*refusal)();  // null: accepted; otherwise what is missing
};

const Candidate* candidates(int* count);
const Kernels* kernels(const char* name);  // null where unknown or refused

}  // namespace octavo
