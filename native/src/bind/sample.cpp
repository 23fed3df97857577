#include "sample.h"

#include <vector>

#include "octavo/kernels.h"

namespace nb = nanobind;

namespace octavo {

SampleBatch sample_batch(const Bytes& jobs, const TokenIds& ids, const Values& values, const Bytes& masks,
                         const MutableBytes& scored, const MutableBytes& alternatives, int num_rows, int vocab) {
  SampleBatch batch;
  batch.jobs = reinterpret_cast<const SampleJob*>(jobs.data());
  batch.num_jobs = static_cast<int>(jobs.size() / sizeof(SampleJob));
  batch.ids = ids.data();
  batch.num_ids = static_cast<int64_t>(ids.size());
  batch.values = values.data();
  batch.num_values = static_cast<int64_t>(values.size());
  batch.masks = masks.data();
  batch.num_mask_bytes = static_cast<int64_t>(masks.size());
  batch.scored = reinterpret_cast<Scored*>(scored.data());
  batch.alternatives = reinterpret_cast<Alternative*>(alternatives.data());
  batch.num_alternatives = static_cast<int64_t>(alternatives.size() / sizeof(Alternative));
  if (batch.num_jobs * sizeof(SampleJob) != jobs.size() || batch.num_jobs * sizeof(Scored) != scored.size())
    throw nb::value_error("sampling jobs and their results differ in number");
  if (const char* fault = sample_batch_fault(batch, num_rows, vocab)) throw nb::value_error(fault);
  return batch;
}

namespace {

using Logits = nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::c_contig>;

void sample_rows(const char* isa, const Logits& logits, const Bytes& jobs, const TokenIds& ids, const Values& values,
                 const Bytes& masks, const MutableBytes& scored, const MutableBytes& alternatives) {
  const Kernels* set = kernels(isa);
  if (set == nullptr) throw nb::value_error("these kernels are not known, or not for this machine");
  const int num_rows = static_cast<int>(logits.shape(0)), vocab = static_cast<int>(logits.shape(1));
  const SampleBatch batch = sample_batch(jobs, ids, values, masks, scored, alternatives, num_rows, vocab);
  std::vector<uint8_t> memory(sample_scratch_bytes(vocab));
  std::vector<float> maxima(static_cast<size_t>(sample_chunks(vocab)));
  SampleScratch scratch{memory.data(), memory.size()};
  nb::gil_scoped_release free_others;
  for (int job = 0; job < batch.num_jobs; ++job) {
    const float* row = logits.data() + static_cast<size_t>(batch.jobs[job].row) * vocab;
    set->chunk_maxima(row, vocab, maxima.data());
    run_sample_job(*set, row, maxima.data(), vocab, batch, job, scratch);
  }
}

}  // namespace

void bind_sample(nb::module_& m) {
  m.def("sample_rows", &sample_rows, nb::arg("isa"), nb::arg("logits"), nb::arg("jobs"), nb::arg("ids"),
        nb::arg("values"), nb::arg("masks"), nb::arg("scored"), nb::arg("alternatives"),
        "Runs packed sampling jobs on rows of logits with the kernels of `isa`, on this thread.");
}

}  // namespace octavo
