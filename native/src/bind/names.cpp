#include "names.h"

#include <initializer_list>
#include <stdexcept>
#include <utility>

namespace octavo {
namespace {

template <class E>
E one_of(const std::string& name, std::initializer_list<std::pair<const char*, E>> names) {
  for (const auto& [known, value] : names)
    if (name == known) return value;
  throw std::invalid_argument("unknown name " + name);
}

}  // namespace

const Kernels& kernels_or_throw(const std::string& isa) {
  if (const Kernels* found = kernels(isa.c_str())) return *found;
  throw std::invalid_argument("kernels " + isa + " are unknown or refused on this machine");
}

WeightKind weight_kind_named(const std::string& name) {
  return one_of<WeightKind>(
      name, {{"q4", WeightKind::q4}, {"q8", WeightKind::q8}, {"bf16", WeightKind::bf16}, {"f32", WeightKind::f32}});
}

const char* name_of(WeightKind kind) {
  constexpr const char* kNames[] = {"q4", "q8", "bf16", "f32"};
  return kNames[static_cast<int>(kind)];
}

KvType kv_type_named(const std::string& name) {
  return one_of<KvType>(
      name, {{"float32", KvType::f32}, {"bfloat16", KvType::bf16}, {"float16", KvType::f16}, {"int8", KvType::int8}});
}

Epilogue epilogue_named(const std::string& name) {
  return one_of<Epilogue>(name, {{"store", Epilogue::store}, {"add", Epilogue::add}, {"swiglu", Epilogue::swiglu}});
}

}  // namespace octavo
