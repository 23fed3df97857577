#include <nanobind/nanobind.h>

#include "kernels.h"
#include "program.h"
#include "sample.h"

NB_MODULE(_native, m) {
  m.doc() = "Octavo's CPU kernels: packed weights, programs over a paged KV cache, sampling.";
  octavo::bind_program(m);
  octavo::bind_sample(m);
  octavo::bind_kernels(m);
}
