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
// A stage's tiles are cut into runs, one for each thread (or for a few threads together, where there are many), each
// with a counter from which tiles are claimed. A thread takes its own run first, then what others have left. So
// neighbouring tiles are one thread's, the same ones in each step, and threads meet at a counter only when a stage
// ends. One that the system has taken off its core holds up only the tile that it is in; one that never woke up holds
// up nothing. Between jobs, threads spin briefly and then sleep.
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
  // The next tile of a run, with the number of its stage in the upper half: it only ever grows.
  struct alignas(64) Run {
    std::atomic<uint64_t> next{0};
  };
  // A job, with stages of its own: a thread that is late may still look at them when the job is over, and finds nothing
  // left to claim. Only a room that nobody is in gets another job.
  struct alignas(64) Room {
    explicit Room(int num_runs) : runs(static_cast<size_t>(num_runs)) {}
    std::vector<Stage> stages;
    std::vector<Run> runs;
    alignas(64) std::atomic<int64_t> done{0};  // tiles of all stages
    alignas(64) std::atomic<bool> open{false};
    std::atomic<int> inside{0};
    void furnish(const Stage* first, int count);
    void work(int thread, double* ends_s);
    int work_on(size_t stage, int thread);
    int claim(size_t stage, size_t run);
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
