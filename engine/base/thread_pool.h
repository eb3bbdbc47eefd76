// A fixed set of named worker threads for data-parallel loops. Waits on a condition, never spins: a busy
// neighbour on one core must not stall the others (measured: spinning pools lose 3x and more).
#pragma once

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
  void ParallelFor(std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t task, int worker)> fn);

 private:
  void Run(int worker);
  void Work(int worker) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar start_;
  CondVar done_;
  const absl::FunctionRef<void(std::int64_t, int)>* fn_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::int64_t num_tasks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t next_task_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

// Cores this process may run on: the smaller of its affinity mask and its cgroup's CPU quota, at least 1.
int UsableCores();

}  // namespace comoe::base
