// Threads that live as long as the process and share the work of one step.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace octavo {

// One stage of a job: `count` tiles that any thread may claim; the stage is over when all of them are done.
struct Stage {
  int count;
  void* context;
  void (*run)(void* context, int tile, int thread);
  int tag = 0;  // for whoever made it
};

// Runs stages one after the other, each one's tiles on all threads.
//
// A thread claims tiles from a counter, so one that the system has taken off its core holds up only the tile that it is
// in; one that never woke up holds up nothing. Between jobs, threads spin briefly and then sleep.
class Pool {
 public:
  explicit Pool(int num_threads);  // the caller of `run` is one of them
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }
  // One call at a time. `run` functions must not throw. Where `ends_s` is given, it gets the time at which each stage
  // was over.
  void run(const Stage* stages, int num_stages, double* ends_s = nullptr);
  // f(item, thread) for each item.
  void each(int count, const std::function<void(int, int)>& f);

 private:
  struct alignas(64) Progress {
    std::atomic<int> next{0}, done{0};
  };
  // A job, with stages of its own: a thread that is late may still look at them when the job is over, and finds nothing
  // left to claim. Only a room that nobody is in gets another job.
  struct alignas(64) Room {
    std::vector<Stage> stages;
    std::unique_ptr<Progress[]> progress;
    size_t progress_size = 0;
    alignas(64) std::atomic<bool> open{false};
    std::atomic<int> inside{0};
    void furnish(const Stage* first, int count);
    void work(int thread, double* ends_s);
  };
  Room& empty_room();
  void worker(int thread);

  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<Room>> rooms_;  // one more than there are threads that may be late
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<Room*> current_{nullptr};
  std::atomic<bool> ended_{false};
};

}  // namespace octavo
