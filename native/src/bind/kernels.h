#pragma once
#include <nanobind/nanobind.h>

namespace octavo {
void bind_kernels(nanobind::module_& m);
}
