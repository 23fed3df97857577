#include <nanobind/nanobind.h>
NB_MODULE(_native, m) { m.doc() = "Octavo's CPU kernels"; }
