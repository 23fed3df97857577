#include "octavo/pool.h"

#include <algorithm>
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

constexpr int kMostRuns = 8;  // of a stage: a thread that has nothing left to do looks at all of them
constexpr int kSpinsBeforeYield = 4000;
constexpr auto kSpinBeforeSleep = std::chrono::microseconds(60);

void wait_for(const std::atomic<int64_t>& value, int64_t wanted) {
  for (int spins = 0; value.load(std::memory_order_acquire) < wanted; ++spins) {
    if (spins < kSpinsBeforeYield)
      relax();
    else
      std::this_thread::yield();
  }
}

}  // namespace

Pool::Pool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) rooms_.push_back(std::make_unique<Room>(std::min(num_threads, kMostRuns)));
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
  for (Run& run : runs) run.next.store(0, std::memory_order_relaxed);
  done.store(0, std::memory_order_relaxed);
}

void Pool::Room::work(int thread, double* ends_s) {
  int64_t total = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    total += stages[s].count;
    if (const int own = work_on(s, thread)) done.fetch_add(own, std::memory_order_release);
    wait_for(done, total);
    if (ends_s) ends_s[s] = seconds();
  }
}

// Returns how many tiles this thread has done: of its own run, then of what others have left.
int Pool::Room::work_on(size_t stage, int thread) {
  const Stage& work = stages[stage];
  int count = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const size_t run = (static_cast<size_t>(thread) + i) % runs.size();
    for (int tile; (tile = claim(stage, run)) >= 0; ++count) work.run(work.context, tile, thread);
  }
  return count;
}

// The next tile of a run; -1 where none is left, or the stage is over. Whoever is first in a stage moves the run on.
int Pool::Room::claim(size_t stage, size_t run) {
  const auto place = [&](size_t of_run) {
    const size_t tile = (static_cast<size_t>(stages[stage].count) * of_run + runs.size() - 1) / runs.size();
    return uint64_t{stage} << 32 | tile;
  };
  std::atomic<uint64_t>& next = runs[run].next;
  const uint64_t begin = place(run), end = place(run + 1);
  uint64_t seen = next.load(std::memory_order_relaxed), tile;
  do {
    tile = std::max(seen, begin);
    if (tile >= end) return -1;
  } while (!next.compare_exchange_weak(seen, tile + 1, std::memory_order_relaxed));
  return static_cast<int>(static_cast<uint32_t>(tile));
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
