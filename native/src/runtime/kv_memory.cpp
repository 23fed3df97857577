#include <sys/mman.h>

#include <new>

#include "octavo/program.h"

namespace octavo {

KvMemory::KvMemory(size_t size) : size_(size) {
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  madvise(p, size, MADV_HUGEPAGE);  // a hint: attention walks many blocks, and page walks cost more than reading
  data_ = static_cast<uint8_t*>(p);
}

KvMemory::~KvMemory() { munmap(data_, size_); }

}  // namespace octavo
