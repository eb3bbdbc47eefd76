// A fixed set of named threads that run tasks: those of generations first, each kind in the order they came.
// Tokenising happens here: gRPC has as few as two callback threads, and two busy ones stall every RPC, health
// checks included.
#pragma once

#include <array>
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
  enum class Urgency {
    kGeneration,  // somebody waits for tokens
    kQuestion     // the rest: a flood of long texts to tokenise delays no generation by more than one of them
  };
  // Of tasks that wait. One alone always may.
  struct Bounds {
    std::size_t tasks = 0;
    std::size_t bytes = 0;
  };

  // `name` is shown by top and debuggers (15 bytes at most).
  WorkerPool(int num_threads, const std::string& name, const Bounds& bounds);
  // Runs what is pending, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Never blocks. `bytes` is what the task keeps in memory while it waits. False, and `task` is not run, when
  // it would exceed the bounds.
  [[nodiscard]] bool Post(Urgency urgency, std::size_t bytes, Task task) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  struct Pending {
    std::size_t bytes = 0;
    Task task;
  };

  const Bounds bounds_;
  base::Mutex mutex_;
  base::CondVar wake_;
  std::array<std::deque<Pending>, 2> pending_ ABSL_GUARDED_BY(mutex_);  // by urgency
  std::size_t num_pending_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

// For top and debuggers; cut to 15 bytes.
void NameThisThread(const std::string& name);

}  // namespace comoe::server
