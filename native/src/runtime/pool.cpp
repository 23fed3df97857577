#include "octavo/pool.h"

#include <chrono>

#include "octavo/clock.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr int kSpinsBeforeYield = 4000;
constexpr auto kSpinBeforeSleep = std::chrono::microseconds(60);

void wait_for(const std::atomic<int>& value, int wanted) {
  for (int spins = 0; value.load(std::memory_order_acquire) != wanted; ++spins) {
    if (spins < kSpinsBeforeYield)
      relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace

Pool::Pool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
  ended_ = true;
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Pool::work(int thread, double* ends_s) {
  for (int s = 0; s < num_stages_; ++s) {
    const Stage& stage = stages_[s];
    Progress& progress = progress_[s];
    for (int tile; (tile = progress.next.fetch_add(1, std::memory_order_relaxed)) < stage.count;) {
      stage.run(stage.context, tile, thread);
      progress.done.fetch_add(1, std::memory_order_release);
    }
    wait_for(progress.done, stage.count);
    if (ends_s) ends_s[s] = seconds();
  }
}

void Pool::run(const Stage* stages, int num_stages, double* ends_s) {
  if (num_stages > progress_size_) {
    progress_ = std::make_unique<Progress[]>(static_cast<size_t>(num_stages));
    progress_size_ = num_stages;
  }
  for (int s = 0; s < num_stages; ++s) {
    progress_[s].next.store(0, std::memory_order_relaxed);
    progress_[s].done.store(0, std::memory_order_relaxed);
  }
  stages_ = stages;
  num_stages_ = num_stages;
  if (threads_.empty()) return work(0, ends_s);
  open_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  work(0, ends_s);
  // Nobody may enter from here on; whoever is inside has nothing left to claim and leaves at once.
  open_.store(false);
  wait_for(inside_, 0);
}

void Pool::worker(int thread) {
  uint32_t seen = 0;
  for (;;) {
    const auto sleep_at = std::chrono::steady_clock::now() + kSpinBeforeSleep;
    while (job_.load(std::memory_order_acquire) == seen) {
      for (int i = 0; i < 64 && job_.load(std::memory_order_acquire) == seen; ++i) relax();
      if (std::chrono::steady_clock::now() > sleep_at) job_.wait(seen);
    }
    seen = job_.load(std::memory_order_acquire);
    if (ended_) return;
    inside_.fetch_add(1);
    if (open_.load()) work(thread, nullptr);
    inside_.fetch_sub(1);
  }
}

void Pool::each(int count, const std::function<void(int, int)>& f) {
  using Function = std::function<void(int, int)>;
  const Stage stage{count, const_cast<Function*>(&f),
                    [](void* c, int item, int thread) { (*static_cast<const Function*>(c))(item, thread); }};
  run(&stage, 1);
}

}  // namespace octavo
