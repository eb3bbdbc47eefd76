// A fixed set of named threads that run tasks in the order they came. Tokenising happens here: gRPC has as
// few as two callback threads, and two busy ones stall every RPC, health checks included.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "engine/base/sync.h"

namespace comoe::server {

// Thread-safe. Tasks must not throw.
class WorkerPool {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  // `name` is shown by top and debuggers (15 bytes at most).
  WorkerPool(int num_threads, const std::string& name, std::size_t max_pending);
  // Runs what is pending, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Never blocks. False, and `task` is not run, when max_pending tasks wait already.
  [[nodiscard]] bool Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::size_t max_pending_;
  base::Mutex mutex_;
  base::CondVar wake_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

// For top and debuggers; cut to 15 bytes.
void NameThisThread(const std::string& name);

}  // namespace comoe::server
