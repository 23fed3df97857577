// A network as a list of operations over a paged KV cache; one call runs one step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "octavo/formats.h"
#include "octavo/kernels.h"
#include "octavo/kv_memory.h"
#include "octavo/lines.h"
#include "octavo/pool.h"
#include "octavo/trace.h"

namespace octavo {

struct AttentionShape {
  int heads, kv_heads, head_dim, rope_dim;
  float scale;
};

// One step in flat arrays. Work w computes tokens[row_offsets[w] .. row_offsets[w+1]) at positions starts[w], ...
// and reads and writes blocks block_ids[block_offsets[w] .. block_offsets[w+1]): the tables of all groups, one after
// the other, equally long. kNoBlock stands where nothing of the work attends to any more.
struct Step {
  std::span<const int32_t> tokens, starts, row_offsets, block_ids, block_offsets;
  std::span<const int32_t> copies;      // source, target, source, target, ...
  std::span<const int32_t> logit_rows;  // rows (indices of tokens) whose logits are needed, ascending
  SampleBatch samples;                  // without fault (sample_batch_fault); jobs name rows of `logit_rows`
  std::span<const int32_t> sum_rows;    // first, end, first, end, ...: ranges of rows, ascending, apart
  std::span<double> sums;               // [ranges][hidden]: each range's hidden states are added to its own, in order
};

inline constexpr int kNoBlock = -1;

class Program {
 public:
  // Borrows everything: weights, pool and kernels outlive the program.
  Program(const Kernels& kernels, Pool& pool, AttentionShape attention, std::vector<float> inverse_frequencies);

  // A row of `columns` floats for each token, by number.
  int buffer(int columns);
  void embed(const Weight& table, int out);
  // out (+)= weight * (norm? RMSNorm(in) : in)
  void matmul(int in, const float* norm, float eps, const Weight& weight, Epilogue epilogue, int out);
  // One more layer of attention: rotates q and k of `qkv`, stores k and v, attends to the last `window` tokens (0: to
  // all). Layers of a group share a block table, and so a window; groups are numbered from 0 on. Throws
  // std::invalid_argument where windows differ within a group.
  void attention(int qkv, int out, int group, int window);
  // What samples and sums: RMSNorm gives the hidden states, then logits.
  void head(int in, const float* norm, float eps, const Weight& weight);

  // Fixes the cache, once, after all layers are there. Throws std::bad_alloc where the address space has no room.
  void allocate(KvType type, int num_blocks, int block_size);

  // Throws std::invalid_argument for a step that is not inside the cache, the vocabulary or its own arrays; nothing was
  // written then. One call at a time. Where `trace` is given, it gets a span for each stage.
  void run(const Step& step, Trace* trace = nullptr);

  // One block's KV of all layers of a group, layer after layer; as many as the largest group has. Between steps only;
  // throws std::invalid_argument for a block that is outside the pool, or bytes that are not `block_bytes()`.
  size_t block_bytes() const { return layout_.block_bytes * static_cast<size_t>(layers_per_group_); }
  void read_block(int block, std::span<uint8_t> out);
  void write_block(int block, std::span<const uint8_t> bytes);

  int vocab() const { return head_weight_ ? head_weight_->n : 0; }
  int hidden() const { return head_weight_ ? head_weight_->k : 0; }

  // Seconds of the last run in the layers, the output head (and sums), and sampling.
  struct Timings {
    double layers, head, sample;
  };
  const Timings& timings() const { return timings_; }

 private:
  enum class Kind { embed, matmul, attention };
  struct Op {
    Kind kind;
    int in, out, layer;  // layer: of its group
    const float* norm;
    float eps;
    const Weight* weight;
    Epilogue epilogue;
    Program* program;
    int panels_per_tile;
    int group = 0, window = 0;
    // Of a product whose output is gated into rows of activations: the one that reads them, and prepares nothing.
    const Weight* gates_for = nullptr;
    bool reads_gated = false;
    // Of a product: the attention that comes next, and which part of the products before it this is.
    const Op* reader = nullptr;
    double from = 0, to = 0;
  };
  struct Group {
    int num_layers, window;
  };
  struct Row {
    int position, slot;
    const int32_t* block;  // in the first group's table
    int table_len;
  };
  struct Segment {  // the part of a work that lies in the current chunk of rows
    int first_row, num_rows, position;
    const int32_t* blocks;  // the first group's table; the others' follow
    int table_len;
  };
  struct Addend {  // a row whose hidden state is added to a sum
    int row;
    double* sum;
  };
  struct Run {  // rows of one segment whose keys stand side by side in the cache, or share lines of it
    int first_row, num_rows;
  };
  struct Task {  // query rows of one segment that share a KV head
    int segment, kv_head, first_row, num_rows, num_splits, first_partial;
  };

  void check(const Step& step) const;
  void check_table(std::span<const int32_t> ids, int first) const;
  void check_sums(const Step& step) const;
  int first_split(const Op& op, const Task& task) const;
  void copy_blocks(const Step& step);
  void check_block(int block, size_t num_bytes) const;
  void grow(int rows);
  void extend_rotations(int positions);
  int begin_chunk(const Step& step, int first_row, int last_row, int work);
  void plan_attention();
  void plan_stores();
  void plan_later();
  void find_readers();
  bool stores_itself(const Segment& segment) const;
  void plan_needed(const Step& step, int first_row, int last_row);
  void drop_tasks();
  void keep_needed(int buffer);
  int place_of(int row) const;
  void add_stage(Op& op, Part part, int count, void (*run)(void*, int, int));
  void add_stages(Op& op);
  void add_store_stage(Op& op);
  void add_attend_stages(Op& op);
  void run_layers();
  void run_stages();
  void take_logit_rows(const Step& step, int first_row, int last_row);
  void run_head(const Step& step);
  void run_sums(const Step& step, int first_row, int last_row);

  // Tracing: spans follow one another without gaps.
  void mark(Part part, Cost cost);
  void mark_layers();
  Cost cost_of(Part part, const Op& op) const;
  Cost attend_cost(const Op& op) const;
  Cost store_cost(double rows) const;
  Cost prepare_cost(const Weight& w, const float* norm, double rows) const;
  Cost matmul_cost(const Weight& w, double rows, double row_bytes, Epilogue epilogue) const;
  Cost sum_cost(double rows) const;
  Cost sample_cost(int num_jobs) const;

  template <void (Program::*kMethod)(const Op&, int, int)>
  static void run_op(void* context, int index, int thread);
  void run_embed(const Op& op, int tile, int thread);
  void run_prepare(const Op& op, int row, int thread);
  int num_parts(const Weight& w) const;
  int num_tiles(const Op& op) const;
  void run_matmul(const Op& op, int index, int thread);
  ReadLater later_of(const Op& op, int tile, int num_tiles) const;
  void run_rope(const Op& op, int index, int thread);
  void run_task(const Op& op, int task, int thread);
  void run_split(const Op& op, int index, int thread);
  void run_merge(const Op& op, int task, int thread);
  void find_maxima(int rows, int first_column);
  float* maxima_of(int logit_row);
  void run_job(int index, int thread);
  size_t query_bytes() const;  // of one row
  void store_row(const Op& op, int row, int first_kv_head, int last_kv_head);
  AttendArgs attend_args(const Op& op, const Task& task) const;
  const AttendArgs* args_behind(const Op& op, int task, AttendArgs* args) const;
  Partial partial_at(float* memory, int index) const;
  size_t partial_floats() const;
  float* row_of(int buffer, int row);

  const Kernels& kernels_;
  Pool& pool_;
  AttentionShape shape_;
  std::vector<float> inverse_frequencies_;
  std::vector<Op> ops_;
  size_t last_attention_ = 0;  // its place among them
  std::vector<int> columns_;
  const float* head_norm_ = nullptr;
  float head_eps_ = 0;
  const Weight* head_weight_ = nullptr;
  int head_in_ = 0;
  std::vector<Group> groups_;
  int layers_per_group_ = 0;
  int vocab_ = 0;

  KvLayout layout_{};
  int query_rows_ = 0;  // of an attention task, at most
  int num_blocks_ = 0;
  std::unique_ptr<KvMemory> kv_;

  // The current chunk.
  int rows_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<Row> row_places_;
  std::vector<Segment> segments_;
  std::vector<Run> runs_;  // that are stored before anything attends: what tasks do not store themselves
  int rows_in_runs_ = 0;
  std::vector<Task> tasks_;
  std::vector<int> split_tasks_;             // (task, split) pairs, one after the other; empty where tasks run whole
  std::vector<std::vector<int32_t>> later_;  // of each group: blocks that are asked for, in the order of their tasks
  std::vector<int> needed_;                  // rows whose hidden states are read in the end, ascending
  std::vector<Addend> addends_;
  std::vector<Stage> stages_;

  // Scratch, grown on demand.
  std::vector<Lines<float>> buffers_;
  Lines<uint8_t> activations_, gated_, queries_, waiting_;
  Lines<float> rotations_, partials_, logits_, maxima_, hidden_states_;
  std::vector<Lines<float>> thread_partials_;
  std::vector<std::vector<uint8_t>> sample_memory_;
  const SampleBatch* batch_ = nullptr;
  int first_logit_ = 0, num_waiting_ = 0;  // of the step's rows with logits: those that are prepared for the head
  int first_job_ = 0;
  Timings timings_{};
  Trace* trace_ = nullptr;  // of the current run, where it is wanted
  double marked_s_ = 0;     // when the last span ended
  std::vector<double> stage_ends_;
};

}  // namespace octavo
