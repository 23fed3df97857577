#include "octavo/kv_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace octavo {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAhead = size_t{512} << 20;          // bytes that are taken before they are used: seconds of prompts
constexpr size_t kSmall = 16 * kHugePage;             // of a layer: worth no gaps; of a cache: worth no thread
constexpr auto kIdle = std::chrono::milliseconds(5);  // without a step
constexpr auto kStart = std::chrono::seconds(1);      // of a server, that needs its cores for other things

// From one layer's `size` bytes to the next one's. A huge page is cleared when it is first written to, and blocks are
// first used in their order: if layers began at the same place of a page, one step would clear a page for each of them.
// A small cache is left dense, since there the gaps would count.
size_t layer_stride(size_t size, int layers) {
  if (size < kSmall) return size;
  const size_t apart = kHugePage / static_cast<size_t>(layers) / 4096 * 4096;
  return size + (apart - size) % kHugePage;
}

}  // namespace

KvMemory::KvMemory(int layers, size_t block_bytes, int num_blocks)
    : layers_(layers),
      num_blocks_(num_blocks),
      block_bytes_(block_bytes),
      layer_bytes_(layer_stride(block_bytes * static_cast<size_t>(num_blocks), layers)),
      size_(layer_bytes_ * static_cast<size_t>(layers)),
      idle_since_(Clock::now() + kStart) {
  void* p = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  madvise(p, size_, MADV_HUGEPAGE);  // a hint: attention walks many blocks, and page walks cost more than reading
  data_ = static_cast<uint8_t*>(p);
  if (size_ > kSmall) ahead_ = std::thread([this] { take_ahead(); });
}

KvMemory::~KvMemory() {
  if (ahead_.joinable()) {
    busy_ = true;
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    ahead_.join();
  }
  munmap(data_, size_);
}

void KvMemory::begin_step(Pool& pool, int end) {
  busy_ = true;
  const std::lock_guard lock(mutex_);
  if (end > used_) {
    used_ = end;
    changed_.notify_one();
  }
  if (end <= taken_) return;
  const std::vector<size_t> all = pages(taken_, end);
  taken_ = end;
  if (all.size() > 1)
    pool.each(static_cast<int>(all.size()), [&](int i, int) { take_page(all[static_cast<size_t>(i)]); });
}

void KvMemory::end_step() {
  const std::lock_guard lock(mutex_);
  idle_since_ = Clock::now();
  busy_ = false;
}

// Where the huge page ends that holds byte `offset`.
size_t KvMemory::page_behind(size_t offset) const {
  return offset + kHugePage - (reinterpret_cast<size_t>(data_) + offset) % kHugePage;
}

// A byte of each page that holds what of blocks first_block .. end - 1, and nothing of those before.
std::vector<size_t> KvMemory::pages(int first_block, int end) const {
  std::vector<size_t> found;
  for (int layer = 0; layer < layers_; ++layer) {
    const size_t base = layer_bytes_ * static_cast<size_t>(layer);
    const size_t begin = base + block_bytes_ * static_cast<size_t>(first_block);
    size_t at = first_block ? page_behind(begin - 1) : begin;
    for (; at < base + block_bytes_ * static_cast<size_t>(end); at = page_behind(at)) found.push_back(at);
  }
  return found;
}

void KvMemory::take_page(size_t offset) const {
#ifdef MADV_POPULATE_WRITE
  const size_t behind = page_behind(offset), begin = behind < kHugePage ? 0 : behind - kHugePage;
  madvise(data_ + begin, std::min(behind, size_) - begin, MADV_POPULATE_WRITE);  // else the first use takes it
#else
  (void)offset;
#endif
}

// False where a step came between.
bool KvMemory::take_while_idle(int block) const {
  for (size_t page : pages(block, block + 1)) {
    if (busy_) return false;
    take_page(page);
  }
  return true;
}

void KvMemory::take_ahead() {
  const int ahead = static_cast<int>(std::min(kAhead, size_ / 8) / (block_bytes_ * static_cast<size_t>(layers_)));
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (taken_ >= std::min(num_blocks_, used_ + ahead))
      changed_.wait(lock);
    else if (busy_ || Clock::now() < idle_since_ + kIdle)
      changed_.wait_for(lock, kIdle);
    else if (take_while_idle(taken_))
      ++taken_;
  }
}

}  // namespace octavo
