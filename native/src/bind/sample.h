// How a step's samples cross from Python: flat arrays, made by backends/cpu/sampling.py.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "octavo/sample.h"

namespace octavo {

// Structured arrays, seen as bytes.
using Bytes = nanobind::ndarray<const uint8_t, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig>;
using MutableBytes = nanobind::ndarray<uint8_t, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig>;
using TokenIds = nanobind::ndarray<const int32_t, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig>;
using Values = nanobind::ndarray<const float, nanobind::numpy, nanobind::ndim<1>, nanobind::c_contig>;

// A view of the six arrays; they must outlive it. Raises ValueError where their sizes do not agree, or a job reaches
// outside the arrays, the `num_rows` rows of logits or the vocabulary.
SampleBatch sample_batch(const Bytes& jobs, const TokenIds& ids, const Values& values, const Bytes& masks,
                         const MutableBytes& scored, const MutableBytes& alternatives, int num_rows, int vocab);

void bind_sample(nanobind::module_& m);

}  // namespace octavo
