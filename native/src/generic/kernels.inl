// All of one instruction set: its vocabulary must be in scope. Included once by each isa/*/kernels.cpp. Order matters.
#include "math.inl"
#include "rows.inl"
#include "matmul.inl"
#include "kv.inl"
#include "attention.inl"
#include "sample.inl"
#include "limits.inl"
