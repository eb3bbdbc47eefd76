// A fixed set of named worker threads for data-parallel loops of a few microseconds and more.
//
// A worker that runs out of work looks for more for about half a millisecond, first spinning, then
// giving its core to whoever wants it, and then sleeps: within a step the next loop starts in well under a
// microsecond, and an idle pool costs nothing. Threads claim tasks, so the caller never waits for a worker
// that a busy neighbour keeps from its core, unless it was stopped in the middle of a task.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/base/sync.h"

namespace comoe::base {

// Thread-compatible: one caller at a time (the engine thread). The caller works too, so a pool of size n has
// n - 1 threads of its own and size 1 runs everything inline.
class ThreadPool {
 public:
  // num_threads >= 1, the caller included. `name` is shown by top and debuggers (15 bytes at most).
  ThreadPool(int num_threads, const std::string& name);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls fn(task, worker) once for every task in [0, num_tasks), worker in [0, num_threads()); returns when
  // all are done. Tasks are handed out one at a time in order, so unequal tasks balance. fn must not throw
  // and must not call ParallelFor. Does not allocate. What a task computes must not depend on its worker.
  // num_tasks < 2^32.
  void ParallelFor(std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t task, int worker)> fn);

 private:
  // The loop at hand: how many tasks it has, and the next one to be claimed. One word, so that a claim checks
  // and takes at once.
  static constexpr int kTasksShift = 32;
  static constexpr std::uint64_t kNextMask = (std::uint64_t{1} << kTasksShift) - 1;
  static bool HasTask(std::uint64_t loop) { return (loop & kNextMask) < loop >> kTasksShift; }

  void Run(int worker);
  void Work(int worker);
  void WakeWorkers();
  void WakeCaller() ABSL_LOCKS_EXCLUDED(mutex_);

  // Written by the caller before it publishes a loop, read by who has claimed a task of it: until that task
  // is finished, the caller does not go on.
  const absl::FunctionRef<void(std::int64_t, int)>* fn_ = nullptr;
  // Apart from each other: claims and ends come from all threads at once.
  alignas(64) std::atomic<std::uint64_t> loop_{0};
  alignas(64) std::atomic<std::int64_t> unfinished_{0};
  static constexpr int kWokenByEach = 2;
  alignas(64) std::atomic<int> sleeping_{0};  // workers
  std::atomic<std::uint32_t> wakes_{0};       // raised when sleepers have to look
  std::atomic<bool> caller_sleeps_{false};    // changed under mutex_
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar done_;
  std::vector<std::thread> threads_;  // constant after construction
};

// Cores this process may run on: the smaller of its affinity mask and its cgroup's CPU quota, at least 1.
int UsableCores();

}  // namespace comoe::base
