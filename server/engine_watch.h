// Turns health NOT_SERVING while the engine thread is silent, and back when it goes on.
#pragma once

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "engine/base/sync.h"
#include "scheduler/batching/scheduler.h"

namespace comoe::server {

// A thread that looks at the scheduler's heartbeat. A step that hangs in a driver cannot be ended from
// outside; that its requests end, that nobody sends it more work, and that an orchestrator may restart the
// process, is what can be done.
class EngineWatch {
 public:
  // `scheduler` outlives it. `on_change(true)` when the heartbeat is older than `timeout`, `on_change(false)`
  // when it is young again; called on the thread.
  EngineWatch(const batching::Scheduler& scheduler, absl::Duration timeout,
              std::function<void(bool)> on_change);
  ~EngineWatch();
  EngineWatch(const EngineWatch&) = delete;
  EngineWatch& operator=(const EngineWatch&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  const batching::Scheduler& scheduler_;
  const absl::Duration timeout_;
  const std::function<void(bool)> on_change_;
  base::Mutex mutex_;
  base::CondVar wake_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace comoe::server
