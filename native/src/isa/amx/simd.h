// AMX: the vocabulary of avx512bf16; tiles.inl has what is done with tiles.
#pragma once
#include "../avx512bf16/simd.h"
