// The generic kernels and products on tiles, compiled for amx. Nothing inline may be shared with other objects: the
// linker keeps one copy of an inline function, and it could be the one that this machine cannot run.
#include "octavo/kernels.h"

#include <immintrin.h>  // before any namespace: simd.h includes it inside one

namespace octavo::amx {
namespace {
#include "simd.h"
#include "../../generic/kernels.inl"
#include "tiles.inl"
#include "attention.inl"
}  // namespace

extern const Kernels table;
const Kernels table = {
    "amx",      512,        tiled_rows_of_part, tiled_stride,       tiled_prepare, tiled_matmul, true,
    gather_row, rope_store, tiled_query_rows,   tiled_attend_split, attend_merge,  chunk_maxima, sample,
    score,      read_all,   tiled_spin_dots};
}  // namespace octavo::amx
