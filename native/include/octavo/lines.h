// Vectors that begin with a cache line.
#pragma once
#include <cstddef>
#include <new>
#include <vector>

namespace octavo {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* at, size_t) { ::operator delete(at, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};

// What kernels read and write in whole vectors of 64 bytes: across two lines each of them costs twice.
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

}  // namespace octavo
