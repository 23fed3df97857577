// What a program does for attention: its tasks, what they store, what they read, and what is asked for before.
#include <algorithm>
#include <cmath>
#include <utility>

#include "octavo/program.h"

namespace octavo {
namespace {

constexpr int kUnitKeys = 16;  // keys that stand side by side in the cache, at most
constexpr int kFewRows = 8;    // fewer wait for their weights as it is

}  // namespace

// ---- plans ----

// Each product gets its share, by its size, of what the attention behind it reads.
void Program::find_readers() {
  for (size_t begin = 0; begin < ops_.size();) {
    size_t end = begin;
    double total = 0, before = 0;
    const auto size_of = [](const Op& op) {
      return op.kind == Kind::matmul ? static_cast<double>(op.weight->n) * op.weight->k : 0.0;
    };
    for (; end < ops_.size() && ops_[end].kind != Kind::attention; ++end) total += size_of(ops_[end]);
    for (size_t i = begin; i < end && end < ops_.size(); ++i) {
      if (ops_[i].kind != Kind::matmul) continue;
      ops_[i].reader = &ops_[end];
      ops_[i].from = before / total;
      ops_[i].to = (before += size_of(ops_[i])) / total;
    }
    begin = end + 1;
  }
}

// A decode reads much and computes little: what it reads is asked for while the products before it are computed. A
// prompt's rows compute long enough on what they read.
void Program::plan_later() {
  later_.resize(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    later_[g].clear();
    if (rows_ < kFewRows) continue;
    for (const Segment& segment : segments_) {
      if (segment.num_rows > 1) continue;
      const int32_t* blocks = segment.blocks + static_cast<int>(g) * segment.table_len;
      later_[g].insert(later_[g].end(), blocks + first_key(groups_[g].window, segment.position) / layout_.block_size,
                       blocks + segment.position / layout_.block_size + 1);
    }
  }
}

// The threads' runs of tiles go side by side through their runs of the attention's tasks.
ReadLater Program::later_of(const Op& op, int tile, int num_tiles) const {
  if (!op.reader) return {};
  const std::vector<int32_t>& blocks = later_[static_cast<size_t>(op.reader->group)];
  if (blocks.empty()) return {};
  const double threads = pool_.num_threads(), lines = static_cast<double>(blocks.size() * layout_.block_bytes / 64);
  const auto place = [&](int t) {
    const double all = threads * t / num_tiles, thread = std::floor(all);
    return (thread + op.from + (op.to - op.from) * (all - thread)) / threads;
  };
  const double first = place(tile), last = first + (op.to - op.from) / num_tiles;
  return {kv_->layer(op.reader->layer), blocks.data(), layout_.block_bytes, static_cast<size_t>(first * lines) * 64,
          std::min(static_cast<size_t>(last * lines) * 64, blocks.size() * layout_.block_bytes)};
}

void Program::plan_attention() {
  tasks_.clear();
  split_tasks_.clear();
  const int group = shape_.heads / shape_.kv_heads;
  const int rows_per_task = group <= query_rows_ ? query_rows_ / group * group : query_rows_;
  int num_partials = 0;
  for (int s = 0; s < static_cast<int>(segments_.size()); ++s) {
    const Segment& segment = segments_[static_cast<size_t>(s)];
    for (int first = 0; first < segment.num_rows * group; first += rows_per_task) {
      const int rows = std::min(rows_per_task, segment.num_rows * group - first);
      const int last_position = segment.position + (first + rows - 1) / group;
      const int splits = last_position / kSplitKeys + 1;
      for (int h = 0; h < shape_.kv_heads; ++h) {
        tasks_.push_back({s, h, first, rows, splits, num_partials});
        num_partials += splits;
      }
    }
  }
  // Few long tasks are cut at the splits, so that all threads have work; the sums are the same either way.
  const int num_tasks = static_cast<int>(tasks_.size());
  if (num_partials == num_tasks || num_tasks >= 8 * pool_.num_threads()) return;
  for (int t = 0; t < num_tasks; ++t)
    for (int s = 0; s < tasks_[static_cast<size_t>(t)].num_splits; ++s) split_tasks_.insert(split_tasks_.end(), {t, s});
  partials_.resize(std::max(partials_.size(), partial_floats() * static_cast<size_t>(num_partials)));
}

// Leaves those that a needed row is of, and those that store their own key and value.
void Program::drop_tasks() {
  const int group = shape_.heads / shape_.kv_heads;
  std::vector<Task> kept;
  std::vector<int> kept_splits;
  size_t next_split = 0;
  for (size_t t = 0; t < tasks_.size(); ++t) {
    const Task& task = tasks_[t];
    const Segment& segment = segments_[static_cast<size_t>(task.segment)];
    const int first = segment.first_row + task.first_row / group;
    const int last = segment.first_row + (task.first_row + task.num_rows - 1) / group;
    const auto needed = std::lower_bound(needed_.begin(), needed_.end(), first);
    const bool keep = stores_itself(segment) || (needed != needed_.end() && *needed <= last);
    for (; next_split < split_tasks_.size() && static_cast<size_t>(split_tasks_[next_split]) == t; next_split += 2)
      if (keep) kept_splits.insert(kept_splits.end(), {static_cast<int>(kept.size()), split_tasks_[next_split + 1]});
    if (keep) kept.push_back(task);
  }
  tasks_ = std::move(kept);
  split_tasks_ = std::move(kept_splits);
}

// A decode's task is alone with its key and value of a head, and stores them itself: one stage fewer, and the block
// that it is about to read comes into the cache once. Not so where splits, or some of the group's heads, are tasks of
// their own.
bool Program::stores_itself(const Segment& segment) const {
  return segment.num_rows == 1 && split_tasks_.empty() && shape_.heads / shape_.kv_heads <= query_rows_;
}

// All other rows are stored before. Those in one unit of keys write to the same lines: they are one thread's.
void Program::plan_stores() {
  runs_.clear();
  rows_in_runs_ = 0;
  for (const Segment& segment : segments_) {
    if (stores_itself(segment)) continue;
    rows_in_runs_ += segment.num_rows;
    for (int row = 0; row < segment.num_rows;) {
      const int in_unit = kUnitKeys - (segment.position + row) % kUnitKeys;
      const int rows = std::min(in_unit, segment.num_rows - row);
      runs_.push_back({segment.first_row + row, rows});
      row += rows;
    }
  }
}

// ---- tasks ----

size_t Program::query_bytes() const { return static_cast<size_t>(shape_.heads * shape_.head_dim) * 4; }

void Program::run_rope(const Op& op, int index, int) {
  const Run& run = runs_[static_cast<size_t>(index)];
  for (int row = run.first_row; row < run.first_row + run.num_rows; ++row) store_row(op, row, 0, shape_.kv_heads);
}

void Program::store_row(const Op& op, int row, int first_kv_head, int last_kv_head) {
  const Row& at = row_places_[static_cast<size_t>(row)];
  kernels_.rope_store({&layout_, kv_->layer(op.layer), row_of(op.in, row),
                       rotations_.data() + static_cast<size_t>(at.position * shape_.rope_dim),
                       queries_.data() + query_bytes() * static_cast<size_t>(row), shape_.heads, shape_.rope_dim,
                       shape_.scale, at.block[op.group * at.table_len], at.slot, first_kv_head, last_kv_head});
}

AttendArgs Program::attend_args(const Op& op, const Task& task) const {
  const Segment& segment = segments_[static_cast<size_t>(task.segment)];
  const size_t out = static_cast<size_t>(op.out);
  const size_t row = static_cast<size_t>(segment.first_row), stride = static_cast<size_t>(columns_[out]);
  return {&layout_,
          kv_->layer(op.layer),
          segment.blocks + op.group * segment.table_len,
          queries_.data() + query_bytes() * row,
          query_bytes(),
          const_cast<float*>(buffers_[out].data()) + stride * row,
          stride,
          shape_.heads,
          task.kv_head,
          segment.position,
          task.first_row,
          task.num_rows,
          op.window,
          nullptr};
}

// Of the task behind this one, which is most likely this thread's next; null for the last.
const AttendArgs* Program::args_behind(const Op& op, int task, AttendArgs* args) const {
  const size_t behind = static_cast<size_t>(task) + 1;
  if (behind == tasks_.size()) return nullptr;
  *args = attend_args(op, tasks_[behind]);
  return args;
}

// The first split that any row of the task attends to.
int Program::first_split(const Op& op, const Task& task) const {
  const int token = task.first_row / (shape_.heads / shape_.kv_heads);
  return first_key(op.window, segments_[static_cast<size_t>(task.segment)].position + token) / kSplitKeys;
}

size_t Program::partial_floats() const {
  return static_cast<size_t>(query_rows_) * static_cast<size_t>(shape_.head_dim + 2);
}

Partial Program::partial_at(float* memory, int index) const {
  float* acc = memory + partial_floats() * static_cast<size_t>(index);
  float* maximum = acc + query_rows_ * shape_.head_dim;
  return {acc, maximum, maximum + query_rows_};
}

void Program::run_task(const Op& op, int index, int thread) {
  const Task& task = tasks_[static_cast<size_t>(index)];
  Lines<float>& memory = thread_partials_[static_cast<size_t>(thread)];
  memory.resize(std::max(memory.size(), partial_floats() * static_cast<size_t>(task.num_splits)));
  const Segment& segment = segments_[static_cast<size_t>(task.segment)];
  if (stores_itself(segment)) store_row(op, segment.first_row, task.kv_head, task.kv_head + 1);
  AttendArgs args = attend_args(op, task), next;
  args.next = args_behind(op, index, &next);
  std::vector<Partial> partials;
  Partial few[8];
  Partial* list = few;
  if (task.num_splits > 8) {
    partials.resize(static_cast<size_t>(task.num_splits));
    list = partials.data();
  }
  for (int s = first_split(op, task); s < task.num_splits; ++s) {
    list[s] = partial_at(memory.data(), s);
    kernels_.attend_split(args, s, list[s]);
  }
  kernels_.attend_merge(args, list, task.num_splits);
}

void Program::run_split(const Op& op, int index, int) {
  const size_t i = static_cast<size_t>(index) * 2;
  const Task& task = tasks_[static_cast<size_t>(split_tasks_[i])];
  const int split = split_tasks_[i + 1];
  if (split < first_split(op, task)) return;
  AttendArgs args = attend_args(op, task), next;
  args.next = args_behind(op, split_tasks_[i], &next);
  kernels_.attend_split(args, split, partial_at(partials_.data(), task.first_partial + split));
}

void Program::run_merge(const Op& op, int index, int) {
  const Task& task = tasks_[static_cast<size_t>(index)];
  std::vector<Partial> partials;
  for (int s = 0; s < task.num_splits; ++s) partials.push_back(partial_at(partials_.data(), task.first_partial + s));
  kernels_.attend_merge(attend_args(op, task), partials.data(), task.num_splits);
}

}  // namespace octavo
