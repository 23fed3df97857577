// Single kernels on numpy arrays: for tests and benchmarks, on this thread.
#include "kernels.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "names.h"
#include "octavo/formats.h"
#include "octavo/lines.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Matrix = nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::c_contig>;
using MutableMatrix = nb::ndarray<float, nb::numpy, nb::ndim<2>, nb::c_contig>;
using Vector = nb::ndarray<const float, nb::numpy, nb::ndim<1>, nb::c_contig>;
using Table = nb::ndarray<const int32_t, nb::numpy, nb::ndim<1>, nb::c_contig>;

// Rows of activations, readable up to whole tiles of rows.
class Activations {
 public:
  Activations(const Kernels& set, const Weight& w, size_t rows)
      : stride(set.activation_stride(w.kind, w.k)), memory_(stride * ((rows + kRowTile - 1) / kRowTile * kRowTile)) {}

  uint8_t* row(size_t r) { return memory_.data() + stride * r; }

  const size_t stride;

 private:
  Lines<uint8_t> memory_;
};

Activations prepared(const Kernels& set, const Weight& w, Matrix x, const float* norm, float eps) {
  Activations rows(set, w, x.shape(0));
  for (size_t r = 0; r < x.shape(0); ++r) set.prepare(w.kind, x.data() + r * x.shape(1), norm, eps, w.k, rows.row(r));
  return rows;
}

int panels_of(const Weight& w) { return (w.n + kPanel - 1) / kPanel; }

void matmul(const std::string& isa, const PackedWeight& packed, Matrix x, std::optional<Vector> norm, float eps,
            const std::string& ending, MutableMatrix out) {
  const Kernels& set = kernels_or_throw(isa);
  const Weight& w = packed.view();
  const Epilogue last = epilogue_named(ending);
  const int rows = static_cast<int>(x.shape(0)), panels = panels_of(w);
  const size_t columns = static_cast<size_t>(last == Epilogue::swiglu ? panels / 2 : panels) * kPanel;
  if (x.shape(1) != static_cast<size_t>(w.k) || out.shape(0) != x.shape(0) || out.shape(1) != columns ||
      (norm && norm->size() != x.shape(1)))
    throw std::invalid_argument("shapes do not match the weight");
  nb::gil_scoped_release unlocked;
  Activations activations = prepared(set, w, x, norm ? norm->data() : nullptr, eps);
  set.matmul({&w, activations.row(0), rows, out.data(), columns, last, {}, nullptr, nullptr}, 0, panels);
}

// SwiGLU of one product, written as the rows that `down` reads, and the product with that. False, and nothing is done,
// where the set does not gate rows for it.
bool gated_matmul(const std::string& isa, const PackedWeight& gate_up, const PackedWeight& down, Matrix x,
                  MutableMatrix out) {
  const Kernels& set = kernels_or_throw(isa);
  const Weight &first = gate_up.view(), &reader = down.view();
  const int rows = static_cast<int>(x.shape(0));
  if (x.shape(1) != static_cast<size_t>(first.k) || first.n != 2 * reader.k || out.shape(0) != x.shape(0) ||
      out.shape(1) != static_cast<size_t>(panels_of(reader) * kPanel))
    throw std::invalid_argument("shapes do not match the weights");
  if (!gates_rows_for(set, reader)) return false;
  nb::gil_scoped_release unlocked;
  Activations activations = prepared(set, first, x, nullptr, 0), gated(set, reader, x.shape(0));
  set.matmul({&first, activations.row(0), rows, nullptr, 0, Epilogue::swiglu, {}, &reader, gated.row(0)}, 0,
             panels_of(first));
  set.matmul({&reader, gated.row(0), rows, out.data(), out.shape(1), Epilogue::store, {}, nullptr, nullptr}, 0,
             panels_of(reader));
  return true;
}

void gather(const std::string& isa, const PackedWeight& packed, int row, MutableMatrix out) {
  const Weight& w = packed.view();
  if (row < 0 || row >= w.n || out.shape(0) != 1 || out.shape(1) != static_cast<size_t>(w.k))
    throw std::invalid_argument("no such row");
  kernels_or_throw(isa).gather_row(w, row, out.data());
}

// Rows of one request from position 0 on, over a fresh cache: stores each row's key and value, then attends all rows,
// `rows_at_once` query rows at a time (0: as many as the kernel set takes), with a table in which what lies behind
// their window is a block of NaN.
void attend(const std::string& isa, const std::string& type, int block_size, Table blocks, int heads, int kv_heads,
            int head_dim, int window, Vector inverse_frequencies, float scale, int rows_at_once, Matrix qkv,
            MutableMatrix out) {
  const Kernels& set = kernels_or_throw(isa);
  const int rows = static_cast<int>(qkv.shape(0)), half = static_cast<int>(inverse_frequencies.size()),
            group = heads / kv_heads;
  const KvLayout layout = kv_layout(kv_type_named(type), block_size, kv_heads, head_dim);
  const int query_rows = set.query_rows(layout);
  if (rows_at_once == 0) rows_at_once = query_rows;
  const int highest = blocks.size() ? *std::max_element(blocks.data(), blocks.data() + blocks.size()) : 0;
  if (static_cast<size_t>(rows) > blocks.size() * static_cast<size_t>(block_size) || rows_at_once < 1 ||
      rows_at_once > query_rows || qkv.shape(1) != static_cast<size_t>((heads + 2 * kv_heads) * head_dim) ||
      out.shape(0) != qkv.shape(0) || out.shape(1) != static_cast<size_t>(heads * head_dim))
    throw std::invalid_argument("shapes do not match");
  std::vector<uint8_t> cache(layout.block_bytes * static_cast<size_t>(highest + 2),
                             0xff);  // NaN wherever nothing was written
  const size_t query_stride = static_cast<size_t>(heads * head_dim) * 4;
  std::vector<uint8_t> queries(query_stride * static_cast<size_t>(rows));
  std::vector<float> rotation(static_cast<size_t>(2 * half));
  for (int r = 0; r < rows; ++r) {
    for (int f = 0; f < half; ++f) {
      const double angle = static_cast<double>(static_cast<float>(r) * inverse_frequencies.data()[f]);
      rotation[static_cast<size_t>(f)] = static_cast<float>(__builtin_cos(angle));
      rotation[static_cast<size_t>(half + f)] = static_cast<float>(__builtin_sin(angle));
    }
    set.rope_store({&layout, cache.data(), qkv.data() + static_cast<size_t>(r) * qkv.shape(1), rotation.data(),
                    queries.data() + query_stride * static_cast<size_t>(r), heads, 2 * half, scale,
                    blocks.data()[r / block_size], r % block_size, 0, kv_heads});
  }
  const int splits = (rows - 1) / kSplitKeys + 1;
  const size_t floats = static_cast<size_t>(query_rows * (head_dim + 2));
  std::vector<float> memory(floats * static_cast<size_t>(splits));
  std::vector<Partial> partials;
  for (int s = 0; s < splits; ++s) {
    float* acc = memory.data() + floats * static_cast<size_t>(s);
    partials.push_back({acc, acc + query_rows * head_dim, acc + query_rows * (head_dim + 1)});
  }
  const auto args_of = [&](int head, int first, std::vector<int32_t>& table) {
    table.assign(blocks.data(), blocks.data() + blocks.size());
    std::fill_n(table.begin(), first_key(window, first / group) / block_size, highest + 1);
    const int count = std::min(rows_at_once, rows * group - first);
    return AttendArgs{&layout,    cache.data(), table.data(), queries.data(), query_stride,
                      out.data(), out.shape(1), heads,        head,           0,
                      first,      count,        window,       nullptr};
  };
  std::vector<int32_t> table, next_table;
  for (int h = 0; h < kv_heads; ++h)
    for (int first = 0; first < rows * group; first += rows_at_once) {
      AttendArgs args = args_of(h, first, table);
      const bool last = first + args.num_rows == rows * group;
      const AttendArgs next = args_of(last ? h + 1 : h, last ? 0 : first + rows_at_once, next_table);
      if (!last || h + 1 < kv_heads) args.next = &next;
      const int own = ((first + args.num_rows - 1) / group) / kSplitKeys + 1;
      for (int s = first_key(window, first / group) / kSplitKeys; s < own; ++s)
        set.attend_split(args, s, partials[static_cast<size_t>(s)]);
      set.attend_merge(args, partials.data(), own);
    }
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("matmul", &matmul, nb::arg("isa"), nb::arg("weight"), nb::arg("x"), nb::arg("norm").none(), nb::arg("eps"),
        nb::arg("epilogue"), nb::arg("out"));
  m.def("gated_matmul", &gated_matmul, nb::arg("isa"), nb::arg("gate_up"), nb::arg("down"), nb::arg("x"),
        nb::arg("out"));
  m.def("gather", &gather, nb::arg("isa"), nb::arg("weight"), nb::arg("row"), nb::arg("out"));
  m.def("attend", &attend, nb::arg("isa"), nb::arg("type"), nb::arg("block_size"), nb::arg("blocks"), nb::arg("heads"),
        nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("window"), nb::arg("inverse_frequencies"), nb::arg("scale"),
        nb::arg("rows_at_once"), nb::arg("qkv"), nb::arg("out"));
}

}  // namespace octavo
