// What bounds a step on this machine, measured as the kernels meet it, on all threads of a pool.
#pragma once
#include <cstddef>

#include "octavo/kernels.h"
#include "octavo/pool.h"

namespace octavo {

// Bytes a second: the best of the passes over `num_bytes` of memory that end within `seconds`, at least two. To be more
// than the caches hold. Throws std::bad_alloc.
double read_bandwidth(const Kernels& kernels, Pool& pool, size_t num_bytes, double seconds);

// Operations a second of the dot product that weights of this kind take part in, from registers; two for each product.
double peak_operations(const Kernels& kernels, Pool& pool, WeightKind kind, double seconds);

}  // namespace octavo
