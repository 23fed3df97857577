// Python's names for the choices of the kernels. Each throws std::invalid_argument for a name that it does not know.
#pragma once
#include <string>

#include "octavo/kernels.h"

namespace octavo {
const Kernels& kernels_or_throw(const std::string& isa);
WeightKind weight_kind_named(const std::string& name);
const char* name_of(WeightKind kind);
KvType kv_type_named(const std::string& name);
Epilogue epilogue_named(const std::string& name);
}  // namespace octavo
