// All of one instruction set: its vocabulary must be in scope. Included once by each isa/*/kernels.cpp.
#include "attention.inl"
#include "math.inl"
#include "matmul.inl"
#include "rows.inl"
#include "sample.inl"
