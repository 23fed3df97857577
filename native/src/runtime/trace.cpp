// What each stage of a program has to move and to multiply at the least, and when it was over.
#include "octavo/trace.h"

#include <algorithm>

#include "octavo/clock.h"
#include "octavo/program.h"

namespace octavo {
namespace {

constexpr double kFloat = 4;

double weight_bytes(const Weight& w) {
  return static_cast<double>(w.panel_bytes) * static_cast<double>((w.n + kPanel - 1) / kPanel);
}

}  // namespace

void Program::mark(Part part, Cost cost) {
  const double now_s = seconds();
  trace_->spans.push_back({part, kNoOp, rows_, marked_s_, now_s, cost});
  marked_s_ = now_s;
}

void Program::mark_layers() {
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Op& op = *static_cast<const Op*>(stages_[s].context);
    const Part part = static_cast<Part>(stages_[s].tag);
    trace_->spans.push_back(
        {part, static_cast<int>(&op - ops_.data()), rows_, marked_s_, stage_ends_[s], cost_of(part, op)});
    marked_s_ = stage_ends_[s];
  }
}

// Activations of `rows` rows from floats, and with a norm its weights.
Cost Program::prepare_cost(const Weight& w, const float* norm, double rows) const {
  const double columns = w.k;
  return {0, rows * columns * kFloat + (norm ? columns * kFloat : 0),
          rows * static_cast<double>(kernels_.activation_stride(w.kind, w.k)), 0};
}

// `row_bytes` a row come out; they are read before, too, where they are added to.
Cost Program::matmul_cost(const Weight& w, double rows, double row_bytes, Epilogue epilogue) const {
  const double weights = weight_bytes(w), out = rows * row_bytes;
  const double activations = rows * static_cast<double>(kernels_.activation_stride(w.kind, w.k));
  return {weights, weights + activations + (epilogue == Epilogue::add ? out : 0), out,
          2.0 * rows * static_cast<double>(w.n) * static_cast<double>(w.k)};
}

Cost Program::sum_cost(double rows) const {
  const double columns = hidden();
  return {0, rows * columns * (kFloat + sizeof(double)) + columns * kFloat, rows * columns * sizeof(double), 0};
}

Cost Program::sample_cost(int num_jobs) const { return {0, static_cast<double>(num_jobs) * vocab() * kFloat, 0, 0}; }

// Each key and value is streamed once for each segment that has tasks, and read once for each task.
Cost Program::attend_cost(const Op& op) const {
  const double key_bytes = 2.0 * static_cast<double>(kv_tile_bytes(layout_.type, 1, shape_.head_dim));
  const auto reach = [&](int first, int last) { return static_cast<double>(last + 1 - first_key(op.window, first)); };
  double distinct = 0, attended = 0, read = 0, queries = 0;
  const int group = shape_.heads / shape_.kv_heads;
  int counted = -1;
  for (const Task& task : tasks_) {
    const Segment& segment = segments_[static_cast<size_t>(task.segment)];
    const auto position = [&](int row) { return segment.position + (task.first_row + row) / group; };
    if (task.segment != counted)
      distinct += reach(segment.position, segment.position + segment.num_rows - 1) * shape_.kv_heads;
    counted = task.segment;
    for (int row = 0; row < task.num_rows; ++row) attended += reach(position(row), position(row));
    read += reach(position(0), position(task.num_rows - 1));
    queries += static_cast<double>(task.num_rows) * shape_.head_dim;
  }
  const Cost store = store_cost(rows_ - rows_in_runs_);
  return {distinct * key_bytes, read * key_bytes + queries * kFloat + store.read, queries * kFloat + store.written,
          4.0 * attended * shape_.head_dim};
}

Cost Program::store_cost(double rows) const {
  const double kept = 2.0 * static_cast<double>(kv_tile_bytes(layout_.type, 1, shape_.head_dim)) * shape_.kv_heads;
  const double heads = shape_.heads + 2 * shape_.kv_heads;
  return {0, rows * heads * shape_.head_dim * kFloat, rows * (static_cast<double>(query_bytes()) + kept), 0};
}

Cost Program::cost_of(Part part, const Op& op) const {
  const double rows = rows_, out_columns = columns_[static_cast<size_t>(op.out)];
  const double head_floats = static_cast<double>(shape_.head_dim) * kFloat;
  switch (part) {
    case Part::embed: {
      const double bytes = rows * weight_bytes(*op.weight) / op.weight->n;
      return {bytes, bytes, rows * out_columns * kFloat, 0};
    }
    case Part::prepare:
      return prepare_cost(*op.weight, op.norm, rows);
    case Part::matmul: {
      const Weight* reader = op.gates_for;
      const double row_bytes =
          reader ? static_cast<double>(kernels_.activation_stride(reader->kind, reader->k)) : out_columns * kFloat;
      return matmul_cost(*op.weight, rows, row_bytes, op.epilogue);
    }
    case Part::rope_store:
      return store_cost(rows_in_runs_);
    case Part::attend:
      return attend_cost(op);
    case Part::merge: {
      const double partials = static_cast<double>(split_tasks_.size() / 2 * partial_floats()) * kFloat;
      return {0, partials, rows * shape_.heads * head_floats, 0};
    }
    default:
      return {};  // what belongs to no operation is marked with its cost
  }
}

}  // namespace octavo
