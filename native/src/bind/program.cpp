// Python's view of weights and programs. Arrays are checked here; sizes and ids are checked by the program.
#include "octavo/program.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "names.h"
#include "octavo/formats.h"
#include "octavo/limits.h"
#include "program.h"
#include "sample.h"

namespace nb = nanobind;

namespace octavo {
namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = Array<int32_t>;
using Sums = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), array.size()};
}

// A program, and what it borrows: the threads, the norms; weights are kept alive by nanobind.
struct OwnedProgram {
  OwnedProgram(const std::string& isa, Pool& pool, AttentionShape shape, std::vector<float> frequencies)
      : program(kernels_or_throw(isa), pool, shape, std::move(frequencies)) {}
  const float* keep(const std::optional<Array<float>>& norm) {
    if (!norm) return nullptr;
    norms.push_back(std::make_unique<std::vector<float>>(norm->data(), norm->data() + norm->size()));
    return norms.back()->data();
  }
  std::vector<std::unique_ptr<std::vector<float>>> norms;
  Program program;
};

void pack(PackedWeight& weight, Pool& pool, const nb::object& raw, const std::string& format, int rows, int first_panel,
          int panel_step) {
  Py_buffer view;
  if (PyObject_GetBuffer(raw.ptr(), &view, PyBUF_SIMPLE)) throw nb::python_error();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> release(&view, PyBuffer_Release);
  const Format parsed = format_named(format);
  nb::gil_scoped_release unlocked;
  weight.pack(pool, static_cast<const uint8_t*>(view.buf), static_cast<size_t>(view.len), parsed, rows, first_panel,
              panel_step);
}

nb::tuple run(OwnedProgram& owned, Ints tokens, Ints starts, Ints row_offsets, Ints block_ids, Ints block_offsets,
              Ints copies, Ints logit_rows, const Bytes& jobs, const TokenIds& ids, const Values& values,
              const Bytes& masks, const MutableBytes& scored, const MutableBytes& alternatives, Ints sum_rows,
              const Sums& sums, Trace* trace) {
  if (copies.size() % 2) throw std::invalid_argument("copies come in pairs of source and target");
  const Step step{span_of(tokens),
                  span_of(starts),
                  span_of(row_offsets),
                  span_of(block_ids),
                  span_of(block_offsets),
                  span_of(copies),
                  span_of(logit_rows),
                  sample_batch(jobs, ids, values, masks, scored, alternatives, static_cast<int>(logit_rows.size()),
                               owned.program.vocab()),
                  span_of(sum_rows),
                  {sums.data(), sums.size()}};
  {
    nb::gil_scoped_release unlocked;
    owned.program.run(step, trace);
  }
  const Program::Timings& t = owned.program.timings();
  return nb::make_tuple(t.layers, t.head, t.sample);
}

nb::list spans_of(const Trace& trace) {
  nb::list out;
  for (const Span& s : trace.spans)
    out.append(nb::make_tuple(kPartNames[static_cast<int>(s.part)], s.op, s.rows, s.began_s, s.ended_s, s.cost.streamed,
                              s.cost.read, s.cost.written, s.cost.operations));
  return out;
}

double measure_bandwidth(const std::string& isa, Pool& pool, size_t num_bytes, double seconds) {
  const Kernels& set = kernels_or_throw(isa);
  nb::gil_scoped_release unlocked;
  return read_bandwidth(set, pool, num_bytes, seconds);
}

double measure_peak(const std::string& isa, Pool& pool, const std::string& kind, double seconds) {
  const Kernels& set = kernels_or_throw(isa);
  const WeightKind parsed = weight_kind_named(kind);
  nb::gil_scoped_release unlocked;
  return peak_operations(set, pool, parsed, seconds);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int>(), nb::arg("num_threads"))
      .def_prop_ro("num_threads", &Pool::num_threads);

  nb::class_<Arena>(m, "Arena").def(nb::init<>());

  nb::class_<PackedWeight>(m, "PackedWeight")
      .def(
          "__init__",
          [](PackedWeight* self, Arena& arena, const std::string& kind, const std::vector<std::string>& formats, int n,
             int k) {
            std::vector<Format> parsed;
            for (const std::string& format : formats) parsed.push_back(format_named(format));
            new (self) PackedWeight(arena, weight_kind_named(kind), parsed, n, k);
          },
          nb::arg("arena"), nb::arg("kind"), nb::arg("formats"), nb::arg("n"), nb::arg("k"), nb::keep_alive<1, 2>())
      .def("pack", &pack, nb::arg("pool"), nb::arg("raw"), nb::arg("format"), nb::arg("rows"),
           nb::arg("first_panel") = 0, nb::arg("panel_step") = 1)
      .def_prop_ro("kind", [](const PackedWeight& weight) { return name_of(weight.view().kind); })
      .def_prop_ro("num_bytes", &PackedWeight::size);

  nb::class_<OwnedProgram>(m, "Program")
      .def(
          "__init__",
          [](OwnedProgram* self, const std::string& isa, Pool& pool, int heads, int kv_heads, int head_dim,
             int rope_dim, float scale, std::vector<float> inverse_frequencies) {
            new (self)
                OwnedProgram(isa, pool, {heads, kv_heads, head_dim, rope_dim, scale}, std::move(inverse_frequencies));
          },
          nb::arg("isa"), nb::arg("pool"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
          nb::arg("rope_dim"), nb::arg("scale"), nb::arg("inverse_frequencies"), nb::keep_alive<1, 3>())
      .def(
          "buffer", [](OwnedProgram& p, int columns) { return p.program.buffer(columns); }, nb::arg("columns"))
      .def(
          "embed", [](OwnedProgram& p, const PackedWeight& table, int out) { p.program.embed(table.view(), out); },
          nb::arg("table"), nb::arg("out"), nb::keep_alive<1, 2>())
      .def(
          "matmul",
          [](OwnedProgram& p, int in, std::optional<Array<float>> norm, float eps, const PackedWeight& weight,
             const std::string& ending,
             int out) { p.program.matmul(in, p.keep(norm), eps, weight.view(), epilogue_named(ending), out); },
          nb::arg("source"), nb::arg("norm").none(), nb::arg("eps"), nb::arg("weight"), nb::arg("epilogue"),
          nb::arg("out"), nb::keep_alive<1, 5>())
      .def(
          "attention",
          [](OwnedProgram& p, int qkv, int out, int group, int window) {
            p.program.attention(qkv, out, group, window);
          },
          nb::arg("qkv"), nb::arg("out"), nb::arg("group"), nb::arg("window"))
      .def(
          "head",
          [](OwnedProgram& p, int in, Array<float> norm, float eps, const PackedWeight& weight) {
            p.program.head(in, p.keep(norm), eps, weight.view());
          },
          nb::arg("source"), nb::arg("norm"), nb::arg("eps"), nb::arg("weight"), nb::keep_alive<1, 5>())
      .def(
          "allocate",
          [](OwnedProgram& p, const std::string& type, int num_blocks, int block_size) {
            p.program.allocate(kv_type_named(type), num_blocks, block_size);
          },
          nb::arg("type"), nb::arg("num_blocks"), nb::arg("block_size"))
      .def_prop_ro("block_bytes", [](OwnedProgram& p) { return p.program.block_bytes(); })
      .def(
          "read_block",
          [](OwnedProgram& p, int block, const MutableBytes& out) {
            nb::gil_scoped_release unlocked;
            p.program.read_block(block, {out.data(), out.size()});
          },
          nb::arg("block"), nb::arg("out"))
      .def(
          "write_block",
          [](OwnedProgram& p, int block, const Bytes& raw) {
            nb::gil_scoped_release unlocked;
            p.program.write_block(block, {raw.data(), raw.size()});
          },
          nb::arg("block"), nb::arg("raw"))
      .def("run", &run, nb::arg("tokens"), nb::arg("starts"), nb::arg("row_offsets"), nb::arg("block_ids"),
           nb::arg("block_offsets"), nb::arg("copies"), nb::arg("logit_rows"), nb::arg("jobs"), nb::arg("ids"),
           nb::arg("values"), nb::arg("masks"), nb::arg("scored"), nb::arg("alternatives"), nb::arg("sum_rows"),
           nb::arg("sums"), nb::arg("trace").none() = nb::none());

  nb::class_<Trace>(m, "Trace").def(nb::init<>()).def_prop_ro("spans", &spans_of);

  m.def("read_bandwidth", &measure_bandwidth, nb::arg("isa"), nb::arg("pool"), nb::arg("num_bytes"),
        nb::arg("seconds"));
  m.def("peak_operations", &measure_peak, nb::arg("isa"), nb::arg("pool"), nb::arg("kind"), nb::arg("seconds"));

  m.def(
      "dequantise",
      [](const nb::bytes& raw, const std::string& format, int count) {
        const Format parsed = format_named(format);
        if (raw.size() != row_bytes(parsed, count)) throw std::invalid_argument("the bytes do not match the count");
        std::vector<float> out(static_cast<size_t>(count));
        dequantise(parsed, static_cast<const uint8_t*>(raw.data()), count, out.data());
        return nb::bytes(out.data(), out.size() * 4);
      },
      nb::arg("raw"), nb::arg("format"), nb::arg("count"));

  m.def(
      "kv_tile_bytes",
      [](const std::string& type, int tokens, int head_dim) {
        return kv_tile_bytes(kv_type_named(type), tokens, head_dim);
      },
      nb::arg("type"), nb::arg("tokens"), nb::arg("head_dim"));

  m.def("candidates", [] {
    int count;
    const Candidate* all = candidates(&count);
    nb::list out;
    for (int i = 0; i < count; ++i) {
      const char* refusal = all[i].refusal();
      out.append(nb::make_tuple(nb::str(all[i].name), refusal == nullptr, nb::str(refusal ? refusal : "")));
    }
    return out;
  });
}

}  // namespace octavo
