// The generic kernels, compiled for avx512bf16. Nothing inline may be shared with other objects: the linker keeps one
// copy of an inline function, and it could be the one that this machine cannot run.
#include "octavo/kernels.h"

#include <immintrin.h>  // before any namespace: simd.h includes it inside one

namespace octavo::avx512bf16 {
namespace {
#include "simd.h"
#include "../../generic/kernels.inl"
}  // namespace

extern const Kernels table;
const Kernels table = {"avx512bf16", 128,        rows_of_part, activation_stride, prepare,      matmul,
                       false,        gather_row, rope_store,   query_rows,        attend_split, attend_merge,
                       chunk_maxima, sample,     score,        read_all,          spin_dots};
}  // namespace octavo::avx512bf16
