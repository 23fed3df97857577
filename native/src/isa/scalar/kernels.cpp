// The generic kernels, compiled for scalar. Nothing inline may be shared with other objects: the linker keeps one copy
// of an inline function, and it could be the one that this machine cannot run.
#include "octavo/kernels.h"

namespace octavo::scalar {
namespace {
#include "simd.h"
#include "../../generic/kernels.inl"
}  // namespace

extern const Kernels table;
const Kernels table = {"scalar",     128,        rows_of_part, activation_stride, prepare,      matmul,
                       false,        gather_row, rope_store,   query_rows,        attend_split, attend_merge,
                       chunk_maxima, sample,     score,        read_all,          spin_dots};
}  // namespace octavo::scalar
