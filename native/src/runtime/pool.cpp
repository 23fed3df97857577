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
  for (int i = 0; i < num_threads; ++i) rooms_.push_back(std::make_unique<Room>());
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
  ended_ = true;
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Pool::Room::furnish(const Stage* first, int count) {
  stages.assign(first, first + count);
  if (stages.size() > progress_size) {
    progress = std::make_unique<Progress[]>(stages.size());
    progress_size = stages.size();
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    progress[s].next.store(0, std::memory_order_relaxed);
    progress[s].done.store(0, std::memory_order_relaxed);
  }
}

void Pool::Room::work(int thread, double* ends_s) {
  for (size_t s = 0; s < stages.size(); ++s) {
    const Stage& stage = stages[s];
    Progress& own = progress[s];
    for (int tile; (tile = own.next.fetch_add(1, std::memory_order_relaxed)) < stage.count;) {
      stage.run(stage.context, tile, thread);
      own.done.fetch_add(1, std::memory_order_release);
    }
    wait_for(own.done, stage.count);
    if (ends_s) ends_s[s] = seconds();
  }
}

// There is one: of the others, each late thread is in one room at most.
Pool::Room& Pool::empty_room() {
  for (;;)
    for (const std::unique_ptr<Room>& room : rooms_)
      if (room->inside.load() == 0) return *room;
}

void Pool::run(const Stage* stages, int num_stages, double* ends_s) {
  Room& room = empty_room();
  room.furnish(stages, num_stages);
  if (threads_.empty()) return room.work(0, ends_s);
  room.open.store(true);
  current_.store(&room);
  job_.fetch_add(1);
  job_.notify_all();
  room.work(0, ends_s);
  // Nobody may enter from here on. Whoever is inside has nothing left to claim, and is not waited for: the system may
  // have taken it off its core.
  room.open.store(false);
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
    Room& room = *current_.load();
    room.inside.fetch_add(1);
    if (room.open.load()) room.work(thread, nullptr);
    room.inside.fetch_sub(1);
  }
}

void Pool::each(int count, const std::function<void(int, int)>& f) {
  using Function = std::function<void(int, int)>;
  const Stage stage{count, const_cast<Function*>(&f),
                    [](void* c, int item, int thread) { (*static_cast<const Function*>(c))(item, thread); }};
  run(&stage, 1);
}

}  // namespace octavo
