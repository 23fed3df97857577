#include "octavo/program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/clock.h"

namespace octavo {
namespace {

constexpr int kLogitRows = 32;   // rows of logits in memory at once: whole tiles of rows
constexpr int kHeadPanels = 32;  // of logits that are computed at once: whole chunks of the sampler
static_assert(kHeadPanels * kPanel % kSampleChunk == 0 && kLogitRows % kRowTile == 0);
constexpr int kSumColumns = 64;  // of hidden states that one thread adds up

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int num_panels(const Weight& w) { return ceil_div(w.n, kPanel); }
size_t logit_stride(const Weight& w) { return static_cast<size_t>(num_panels(w)) * kPanel; }

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument("malformed step: " + what); }

}  // namespace

Program::Program(const Kernels& kernels, Pool& pool, AttentionShape attention, std::vector<float> inverse_frequencies)
    : kernels_(kernels), pool_(pool), shape_(attention), inverse_frequencies_(std::move(inverse_frequencies)) {
  if (shape_.head_dim % 16 || shape_.heads % shape_.kv_heads || shape_.rope_dim > shape_.head_dim ||
      inverse_frequencies_.size() * 2 != static_cast<size_t>(shape_.rope_dim))
    throw std::invalid_argument(
        "attention needs a head_dim that is a multiple of 16, whole groups of heads, and rope_dim / 2 frequencies");
  thread_partials_.resize(static_cast<size_t>(pool.num_threads()));
  sample_memory_.resize(static_cast<size_t>(pool.num_threads()));
}

// ---- building ----

int Program::buffer(int columns) {
  columns_.push_back(ceil_div(columns, kPanel) * kPanel);
  buffers_.emplace_back();
  return static_cast<int>(columns_.size()) - 1;
}

void Program::embed(const Weight& table, int out) {
  vocab_ = table.n;
  ops_.push_back({Kind::embed, 0, out, 0, nullptr, 0, &table, Epilogue::store, this, 0});
}

void Program::matmul(int in, const float* norm, float eps, const Weight& weight, Epilogue epilogue, int out) {
  // Panels of a tile share the rows that are near; where four leave few tiles, two balance better.
  const int panels_per_tile = num_panels(weight) / 4 >= 16 * pool_.num_threads() ? 4 : 2;
  ops_.push_back({Kind::matmul, in, out, 0, norm, eps, &weight, epilogue, this, panels_per_tile});
  if (norm || ops_.size() < 2 || !gates_rows_for(kernels_, weight)) return;
  Op& before = ops_[ops_.size() - 2];
  if (before.kind != Kind::matmul || before.epilogue != Epilogue::swiglu || before.out != in) return;
  before.gates_for = &weight;
  ops_.back().reads_gated = true;
}

void Program::attention(int qkv, int out, int group, int window) {
  if (group < 0 || window < 0) throw std::invalid_argument("groups and windows are counted from 0 on");
  if (static_cast<size_t>(group) >= groups_.size()) groups_.resize(static_cast<size_t>(group) + 1, {0, window});
  Group& own = groups_[static_cast<size_t>(group)];
  if (own.num_layers && own.window != window) throw std::invalid_argument("layers of one group have one window");
  own.window = window;
  ops_.push_back(
      {Kind::attention, qkv, out, own.num_layers++, nullptr, 0, nullptr, Epilogue::store, this, 0, group, window});
  layers_per_group_ = std::max(layers_per_group_, own.num_layers);
  last_attention_ = ops_.size() - 1;
}

void Program::head(int in, const float* norm, float eps, const Weight& weight) {
  head_in_ = in;
  head_norm_ = norm;
  head_eps_ = eps;
  head_weight_ = &weight;
}

void Program::allocate(KvType type, int num_blocks, int block_size) {
  if (num_blocks < 1 || block_size < 8 || block_size > 512 || block_size & (block_size - 1))
    throw std::invalid_argument("the KV cache needs at least one block, of 8, 16, 32, 64, 128, 256 or 512 tokens");
  if (type == KvType::int8 && shape_.head_dim > kMaxInt8Dim)
    throw std::invalid_argument("an int8 KV cache needs a head_dim of " + std::to_string(kMaxInt8Dim) +
                                " or less, got " + std::to_string(shape_.head_dim));
  layout_ = kv_layout(type, block_size, shape_.kv_heads, shape_.head_dim);
  query_rows_ = kernels_.query_rows(layout_);
  num_blocks_ = num_blocks;
  kv_ = std::make_unique<KvMemory>(layers_per_group_, layout_.block_bytes, num_blocks);
  find_readers();
}

// ---- one step ----

void Program::check(const Step& s) const {
  if (!kv_ || !head_weight_) refuse("the program has no cache or no output head");
  const size_t works = s.starts.size();
  const int num_groups = static_cast<int>(groups_.size());
  if (s.row_offsets.size() != works + 1 || s.block_offsets.size() != works + 1)
    refuse("offsets do not match the works");
  if (s.row_offsets[0] != 0 || s.block_offsets[0] != 0 ||
      static_cast<size_t>(s.row_offsets[works]) != s.tokens.size() ||
      static_cast<size_t>(s.block_offsets[works]) != s.block_ids.size())
    refuse("offsets do not span the arrays");
  for (size_t w = 0; w < works; ++w) {
    const int rows = s.row_offsets[w + 1] - s.row_offsets[w], blocks = s.block_offsets[w + 1] - s.block_offsets[w];
    if (rows < 1 || blocks < 0 || s.starts[w] < 0) refuse("a work without tokens, or before position 0");
    const int table_len = blocks / num_groups;
    if (blocks % num_groups ||
        static_cast<int64_t>(s.starts[w]) + rows > static_cast<int64_t>(table_len) * layout_.block_size)
      refuse("work " + std::to_string(w) + " reaches beyond its " + std::to_string(table_len) +
             " blocks, or its tables differ in length");
    for (int g = 0; g < num_groups; ++g) {
      const size_t first = static_cast<size_t>(s.block_offsets[w] + g * table_len);
      const int first_position = first_key(groups_[static_cast<size_t>(g)].window, s.starts[w]);
      check_table(s.block_ids.subspan(first, static_cast<size_t>(table_len)), first_position / layout_.block_size);
    }
  }
  for (int32_t token : s.tokens)
    if (token < 0 || token >= vocab_)
      refuse("token " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(vocab_));
  check_table(s.copies, 0);
  for (size_t i = 0; i < s.logit_rows.size(); ++i)
    if (s.logit_rows[i] < (i ? s.logit_rows[i - 1] + 1 : 0) || static_cast<size_t>(s.logit_rows[i]) >= s.tokens.size())
      refuse("logit rows must ascend and lie inside the step");
  check_sums(s);
}

void Program::check_sums(const Step& s) const {
  if (s.sum_rows.size() % 2 || s.sums.size() != s.sum_rows.size() / 2 * static_cast<size_t>(hidden()))
    refuse("ranges of rows to add up come as first and end, with a sum for each");
  int32_t last_end = 0;
  for (size_t i = 0; i < s.sum_rows.size(); i += 2) {
    const int32_t first = s.sum_rows[i], end = s.sum_rows[i + 1];
    if (first < last_end || end <= first || static_cast<size_t>(end) > s.tokens.size())
      refuse("ranges of rows to add up must ascend, be apart and lie inside the step");
    last_end = end;
  }
}

// All ids are blocks of the pool; before the place `first` they may be gone.
void Program::check_table(std::span<const int32_t> ids, int first) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if ((ids[i] < 0 || ids[i] >= num_blocks_) && !(ids[i] == kNoBlock && i < static_cast<size_t>(first)))
      refuse("block " + std::to_string(ids[i]) + " is outside the pool of " + std::to_string(num_blocks_));
}

void Program::run(const Step& step, Trace* trace) {
  trace_ = trace;
  if (trace_) marked_s_ = seconds();
  check(step);
  timings_ = {};
  const int end = step.block_ids.empty() ? 0 : *std::max_element(step.block_ids.begin(), step.block_ids.end()) + 1;
  kv_->begin_step(pool_, end);
  copy_blocks(step);
  batch_ = &step.samples;
  int work = 0;
  first_logit_ = first_job_ = num_waiting_ = 0;
  const int total = static_cast<int>(step.tokens.size());
  for (int first = 0; first < total; first += kernels_.rows_at_once) {
    const int last = std::min(total, first + kernels_.rows_at_once);
    work = begin_chunk(step, first, last, work);
    if (trace_) mark(Part::check, {});
    const double started = seconds();
    run_layers();
    timings_.layers += seconds() - started;
    if (!step.sum_rows.empty()) run_sums(step, first, last);
    take_logit_rows(step, first, last);
  }
  run_head(step);
  kv_->end_step();
}

void Program::copy_blocks(const Step& step) {
  if (step.copies.empty()) return;
  pool_.each(layers_per_group_, [&](int layer, int) {
    for (size_t i = 0; i < step.copies.size(); i += 2)
      std::memcpy(kv_->block(layer, step.copies[i + 1]), kv_->block(layer, step.copies[i]), layout_.block_bytes);
  });
}

void Program::check_block(int block, size_t num_bytes) const {
  if (!kv_) throw std::invalid_argument("the program has no cache");
  if (block < 0 || block >= num_blocks_)
    throw std::invalid_argument("block " + std::to_string(block) + " is outside the pool of " +
                                std::to_string(num_blocks_));
  if (num_bytes != block_bytes())
    throw std::invalid_argument("a block has " + std::to_string(block_bytes()) + " bytes, not " +
                                std::to_string(num_bytes));
}

void Program::read_block(int block, std::span<uint8_t> out) {
  check_block(block, out.size());
  const size_t size = layout_.block_bytes;
  pool_.each(layers_per_group_, [&](int layer, int) {
    std::memcpy(out.data() + size * static_cast<size_t>(layer), kv_->block(layer, block), size);
  });
}

void Program::write_block(int block, std::span<const uint8_t> bytes) {
  check_block(block, bytes.size());
  const size_t size = layout_.block_bytes;
  pool_.each(layers_per_group_, [&](int layer, int) {
    std::memcpy(kv_->block(layer, block), bytes.data() + size * static_cast<size_t>(layer), size);
  });
}

void Program::grow(int rows) {
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const size_t size = static_cast<size_t>(rows) * static_cast<size_t>(columns_[b]);
    if (buffers_[b].size() < size) buffers_[b].resize(size);
  }
  size_t stride = 0, gated_stride = 0;
  for (const Op& op : ops_)
    if (op.kind == Kind::matmul) {
      size_t& longest = op.reads_gated ? gated_stride : stride;
      longest = std::max(longest, kernels_.activation_stride(op.weight->kind, op.weight->k));
    }
  const size_t readable = static_cast<size_t>(ceil_div(rows, kRowTile) * kRowTile);
  activations_.resize(std::max(activations_.size(), stride * readable));
  gated_.resize(std::max(gated_.size(), gated_stride * readable));
  queries_.resize(std::max(queries_.size(), static_cast<size_t>(rows) * query_bytes()));
}

void Program::extend_rotations(int positions) {
  const size_t half = inverse_frequencies_.size();
  const int known = half ? static_cast<int>(rotations_.size() / (2 * half)) : positions;
  if (positions <= known) return;
  const int wanted = ceil_div(positions, 512) * 512;
  rotations_.resize(static_cast<size_t>(wanted) * 2 * half);
  pool_.each(ceil_div(wanted - known, 64), [&](int i, int) {
    for (int p = known + 64 * i; p < std::min(wanted, known + 64 * (i + 1)); ++p) {
      float* at = rotations_.data() + static_cast<size_t>(p) * 2 * half;
      for (size_t f = 0; f < half; ++f) {
        const double angle = static_cast<double>(static_cast<float>(p) * inverse_frequencies_[f]);
        at[f] = static_cast<float>(std::cos(angle));
        at[half + f] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

// Rows first_row .. last_row of the step become the current chunk; `work` holds the first of them. Returns the work
// that holds the row after the last.
int Program::begin_chunk(const Step& step, int first_row, int last_row, int work) {
  rows_ = last_row - first_row;
  grow(rows_);
  tokens_.assign(step.tokens.begin() + first_row, step.tokens.begin() + last_row);
  row_places_.clear();
  segments_.clear();
  int furthest = 0;
  for (int row = first_row; row < last_row;) {
    while (step.row_offsets[static_cast<size_t>(work) + 1] <= row) ++work;
    const size_t w = static_cast<size_t>(work);
    const int end = std::min(last_row, step.row_offsets[w + 1]);
    const int position = step.starts[w] + row - step.row_offsets[w];
    const int32_t* blocks = step.block_ids.data() + step.block_offsets[w];
    const int table_len = (step.block_offsets[w + 1] - step.block_offsets[w]) / static_cast<int>(groups_.size());
    segments_.push_back({row - first_row, end - row, position, blocks, table_len});
    for (int p = position; p < position + end - row; ++p)
      row_places_.push_back({p, p % layout_.block_size, blocks + p / layout_.block_size, table_len});
    furthest = std::max(furthest, position + end - row);
    row = end;
  }
  extend_rotations(furthest);
  plan_attention();
  plan_stores();
  plan_later();
  plan_needed(step, first_row, last_row);
  return work;
}

// Most of a prompt's rows leave nothing but their keys and values.
void Program::plan_needed(const Step& step, int first_row, int last_row) {
  needed_.clear();
  const auto from = [&](int row) { return std::lower_bound(step.logit_rows.begin(), step.logit_rows.end(), row); };
  for (auto row = from(first_row); row != from(last_row); ++row) needed_.push_back(*row - first_row);
  const size_t logits = needed_.size();
  for (size_t i = 0; i < step.sum_rows.size(); i += 2)
    for (int row = std::max(step.sum_rows[i], first_row); row < std::min(step.sum_rows[i + 1], last_row); ++row)
      needed_.push_back(row - first_row);
  if (needed_.size() == logits) return;
  std::sort(needed_.begin(), needed_.end());
  needed_.erase(std::unique(needed_.begin(), needed_.end()), needed_.end());
}

// Where row `row` of the chunk, which is needed, stands once all layers have run.
int Program::place_of(int row) const {
  return static_cast<int>(std::lower_bound(needed_.begin(), needed_.end(), row) - needed_.begin());
}

// Moves needed rows to the front.
void Program::keep_needed(int buffer) {
  const size_t bytes = static_cast<size_t>(columns_[static_cast<size_t>(buffer)]) * sizeof(float);
  for (int i = 0; i < static_cast<int>(needed_.size()); ++i) {
    const int row = needed_[static_cast<size_t>(i)];
    if (row != i) std::memcpy(row_of(buffer, i), row_of(buffer, row), bytes);
  }
}

// Once the last keys and values are stored, only rows whose hidden states somebody reads go on.
void Program::run_layers() {
  Op& last = ops_[last_attention_];
  for (size_t i = 0; i < last_attention_; ++i) add_stages(ops_[i]);
  add_store_stage(last);
  if (static_cast<int>(needed_.size()) < rows_) {
    run_stages();
    drop_tasks();
    add_attend_stages(last);
    run_stages();
    keep_needed(last.out);
    keep_needed(head_in_);
    rows_ = static_cast<int>(needed_.size());
    if (!rows_) return;
  } else {
    add_attend_stages(last);
  }
  for (size_t i = last_attention_ + 1; i < ops_.size(); ++i) add_stages(ops_[i]);
  run_stages();
}

void Program::run_stages() {
  if (trace_) stage_ends_.resize(stages_.size());
  pool_.run(stages_.data(), static_cast<int>(stages_.size()), trace_ ? stage_ends_.data() : nullptr);
  if (trace_) mark_layers();
  stages_.clear();
}

template <void (Program::*kMethod)(const Program::Op&, int, int)>
void Program::run_op(void* context, int index, int thread) {
  const Op& op = *static_cast<const Op*>(context);
  (op.program->*kMethod)(op, index, thread);
}

void Program::add_stage(Op& op, Part part, int count, void (*run)(void*, int, int)) {
  if (count) stages_.push_back({count, &op, run, static_cast<int>(part)});
}

void Program::add_stages(Op& op) {
  switch (op.kind) {
    case Kind::embed:
      add_stage(op, Part::embed, rows_, run_op<&Program::run_embed>);
      break;
    case Kind::matmul:
      if (!op.reads_gated) add_stage(op, Part::prepare, rows_, run_op<&Program::run_prepare>);
      add_stage(op, Part::matmul, num_tiles(op), run_op<&Program::run_matmul>);
      break;
    case Kind::attention:
      add_store_stage(op);
      add_attend_stages(op);
      break;
  }
}

void Program::add_store_stage(Op& op) {
  add_stage(op, Part::rope_store, static_cast<int>(runs_.size()), run_op<&Program::run_rope>);
}

void Program::add_attend_stages(Op& op) {
  const int num_tasks = static_cast<int>(tasks_.size());
  if (split_tasks_.empty()) return add_stage(op, Part::attend, num_tasks, run_op<&Program::run_task>);
  add_stage(op, Part::attend, static_cast<int>(split_tasks_.size() / 2), run_op<&Program::run_split>);
  add_stage(op, Part::merge, num_tasks, run_op<&Program::run_merge>);
}

float* Program::row_of(int buffer, int row) {
  const size_t b = static_cast<size_t>(buffer);
  return buffers_[b].data() + static_cast<size_t>(row) * static_cast<size_t>(columns_[b]);
}

void Program::run_embed(const Op& op, int row, int) {
  kernels_.gather_row(*op.weight, tokens_[static_cast<size_t>(row)], row_of(op.out, row));
}

void Program::run_prepare(const Op& op, int row, int) {
  const Weight& w = *op.weight;
  const size_t stride = kernels_.activation_stride(w.kind, w.k);
  kernels_.prepare(w.kind, row_of(op.in, row), op.norm, op.eps, w.k,
                   activations_.data() + stride * static_cast<size_t>(row));
}

// A long chunk is cut into parts, where threads pass over all weights with rows of their own, which they have prepared:
// fewer rows go from one core's cache to another's. Weights of 16 bits and more are too many to pass over again.
int Program::num_parts(const Weight& w) const {
  return is_quantised(w.kind) ? std::clamp(rows_ / kernels_.rows_of_part(w.kind, w.k), 1, pool_.num_threads()) : 1;
}

int Program::num_tiles(const Op& op) const {
  return num_parts(*op.weight) * ceil_div(num_panels(*op.weight), op.panels_per_tile);
}

void Program::run_matmul(const Op& op, int index, int) {
  const Weight& w = *op.weight;
  const int parts = num_parts(w), tiles_of_part = ceil_div(num_panels(w), op.panels_per_tile);
  const int rows_of_part = ceil_div(ceil_div(rows_, parts), kRowTile) * kRowTile;
  const int row = index / tiles_of_part * rows_of_part, panel = index % tiles_of_part * op.panels_per_tile;
  const Weight* reader = op.gates_for;
  const size_t stride = kernels_.activation_stride(w.kind, w.k),
               gated_stride = reader ? kernels_.activation_stride(reader->kind, reader->k) : 0;
  const uint8_t* activations = (op.reads_gated ? gated_ : activations_).data();
  const MatmulArgs args{&w,
                        activations + stride * static_cast<size_t>(row),
                        std::min(rows_of_part, rows_ - row),
                        row_of(op.out, row),
                        static_cast<size_t>(columns_[static_cast<size_t>(op.out)]),
                        op.epilogue,
                        later_of(op, index, num_tiles(op)),
                        reader,
                        reader ? gated_.data() + gated_stride * static_cast<size_t>(row) : nullptr};
  kernels_.matmul(args, panel, std::min(panel + op.panels_per_tile, num_panels(w)));
}

// ---- hidden states ----

// Adds up those of the current chunk, rows first_row .. last_row of the step: first each row is normalised, then each
// column is added, row after row. So a sum has the same bits wherever chunks end, and on any number of threads.
void Program::run_sums(const Step& step, int first_row, int last_row) {
  const double started = seconds();
  const int columns = hidden();
  addends_.clear();
  for (size_t i = 0; i < step.sum_rows.size(); i += 2)
    for (int row = std::max(step.sum_rows[i], first_row); row < std::min(step.sum_rows[i + 1], last_row); ++row)
      addends_.push_back({row - first_row, step.sums.data() + i / 2 * static_cast<size_t>(columns)});
  const size_t stride = kernels_.activation_stride(WeightKind::f32, columns) / sizeof(float);
  hidden_states_.resize(std::max(hidden_states_.size(), stride * addends_.size()));
  pool_.each(static_cast<int>(addends_.size()), [&](int i, int) {
    kernels_.prepare(WeightKind::f32, row_of(head_in_, place_of(addends_[static_cast<size_t>(i)].row)), head_norm_,
                     head_eps_, columns,
                     reinterpret_cast<uint8_t*>(hidden_states_.data() + stride * static_cast<size_t>(i)));
  });
  pool_.each(ceil_div(columns, kSumColumns), [&](int tile, int) {
    const int first = tile * kSumColumns, last = std::min(first + kSumColumns, columns);
    for (size_t i = 0; i < addends_.size(); ++i)
      for (int c = first; c < last; ++c)
        addends_[i].sum[c] += static_cast<double>(hidden_states_[stride * i + static_cast<size_t>(c)]);
  });
  timings_.head += seconds() - started;
  if (trace_) mark(Part::sum, sum_cost(static_cast<double>(addends_.size())));
}

// ---- logits and sampling ----

// The chunk's rows that have logits wait for others, as all weights of the head are read however few they are.
void Program::take_logit_rows(const Step& step, int first_row, int last_row) {
  const Weight& w = *head_weight_;
  const size_t stride = kernels_.activation_stride(w.kind, w.k);
  const auto end = std::lower_bound(step.logit_rows.begin(), step.logit_rows.end(), last_row);
  const int last = static_cast<int>(end - step.logit_rows.begin());
  waiting_.resize(stride * kLogitRows);
  while (const int rows = std::min(kLogitRows - num_waiting_, last - first_logit_ - num_waiting_)) {
    const double started = seconds();
    pool_.each(rows, [&](int i, int) {
      const int row = step.logit_rows[static_cast<size_t>(first_logit_ + num_waiting_ + i)] - first_row;
      kernels_.prepare(w.kind, row_of(head_in_, place_of(row)), head_norm_, head_eps_, w.k,
                       waiting_.data() + stride * static_cast<size_t>(num_waiting_ + i));
    });
    timings_.head += seconds() - started;
    if (trace_) mark(Part::head_prepare, prepare_cost(w, head_norm_, rows));
    num_waiting_ += rows;
    if (num_waiting_ == kLogitRows) run_head(step);
  }
}

// Logits of the rows that wait, and what is sampled from them.
void Program::run_head(const Step& step) {
  if (!num_waiting_) return;
  const Weight& w = *head_weight_;
  const int rows = std::exchange(num_waiting_, 0);
  const size_t stride = logit_stride(w);
  const double started = seconds();
  logits_.resize(std::max(logits_.size(), stride * static_cast<size_t>(rows)));
  maxima_.resize(std::max(maxima_.size(), static_cast<size_t>(sample_chunks(w.n) * rows)));
  const MatmulArgs args{&w, waiting_.data(), rows, logits_.data(), stride, Epilogue::store, {}, nullptr, nullptr};
  pool_.each(ceil_div(num_panels(w), kHeadPanels), [&](int i, int) {
    kernels_.matmul(args, i * kHeadPanels, std::min((i + 1) * kHeadPanels, num_panels(w)));
    find_maxima(rows, i * kHeadPanels * kPanel);
  });
  if (trace_) mark(Part::head, matmul_cost(w, rows, static_cast<double>(stride * sizeof(float)), Epilogue::store));
  const double computed = seconds();
  int jobs = 0;
  while (first_job_ + jobs < step.samples.num_jobs && step.samples.jobs[first_job_ + jobs].row < first_logit_ + rows)
    ++jobs;
  pool_.each(jobs, [&](int i, int thread) { run_job(i, thread); });
  if (trace_) mark(Part::sample, sample_cost(jobs));
  timings_.head += computed - started;
  timings_.sample += seconds() - computed;
  first_logit_ += rows;
  first_job_ += jobs;
}

// Of the logits that a tile has just computed, while they are near.
void Program::find_maxima(int rows, int first_column) {
  const int vocab = head_weight_->n, count = std::min(kHeadPanels * kPanel, vocab - first_column);
  for (int row = 0; row < rows; ++row)
    kernels_.chunk_maxima(logits_.data() + logit_stride(*head_weight_) * static_cast<size_t>(row) + first_column, count,
                          maxima_of(row) + first_column / kSampleChunk);
}

float* Program::maxima_of(int logit_row) {
  return maxima_.data() + static_cast<size_t>(sample_chunks(head_weight_->n)) * static_cast<size_t>(logit_row);
}

void Program::run_job(int index, int thread) {
  const int vocab = head_weight_->n, job = first_job_ + index;
  std::vector<uint8_t>& memory = sample_memory_[static_cast<size_t>(thread)];
  memory.resize(std::max(memory.size(), sample_scratch_bytes(vocab) + 64));
  void* aligned = memory.data();
  size_t space = memory.size();
  std::align(64, sample_scratch_bytes(vocab), aligned, space);
  SampleScratch scratch{aligned, space};
  const int row = batch_->jobs[job].row - first_logit_;
  const float* logits = logits_.data() + logit_stride(*head_weight_) * static_cast<size_t>(row);
  run_sample_job(kernels_, logits, maxima_of(row), vocab, *batch_, job, scratch);
}

}  // namespace octavo
