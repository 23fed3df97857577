// The memory of the KV cache, and when it is taken from the system.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "octavo/pool.h"

namespace octavo {

// Anonymous memory for blocks of all layers, zero at first. Layers lie one after the other, blocks side by side in
// each.
//
// The system gives a page when it is first written to: it clears it, and a virtual machine may have to be given it
// first. That takes a thread up to milliseconds, for which the others of a step would wait. So pages are taken by all
// threads before a step that uses them for the first time, and some ahead while no step runs. A small cache is left to
// itself.
class KvMemory {
 public:
  // Throws std::bad_alloc where the address space has no room.
  KvMemory(int layers, size_t block_bytes, int num_blocks);
  ~KvMemory();
  KvMemory(const KvMemory&) = delete;
  KvMemory& operator=(const KvMemory&) = delete;
  uint8_t* layer(int layer) const { return data_ + layer_bytes_ * static_cast<size_t>(layer); }
  uint8_t* block(int of_layer, int block) const { return layer(of_layer) + block_bytes_ * static_cast<size_t>(block); }

  // Around a step that uses blocks 0 .. end - 1 at most.
  void begin_step(Pool& pool, int end);
  void end_step();

 private:
  using Clock = std::chrono::steady_clock;
  size_t page_behind(size_t offset) const;
  std::vector<size_t> pages(int first_block, int end) const;
  void take_page(size_t offset) const;
  bool take_while_idle(int block) const;
  void take_ahead();

  const int layers_, num_blocks_;
  const size_t block_bytes_, layer_bytes_, size_;  // layer_bytes_: from one layer to the next
  uint8_t* data_;
  std::atomic<bool> busy_{false};  // a step runs, or is about to
  std::mutex mutex_;               // of all below
  std::condition_variable changed_;
  int taken_ = 0, used_ = 0;  // blocks from the first on: that have memory, that a step has used
  Clock::time_point idle_since_;
  bool ended_ = false;
  std::thread ahead_;
};

}  // namespace octavo
