#include "server/engine_watch.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "engine/base/log.h"

namespace comoe::server {

EngineWatch::EngineWatch(const batching::Scheduler& scheduler, absl::Duration timeout,
                         std::function<void(bool)> on_change)
    : scheduler_(scheduler),
      timeout_(timeout),
      on_change_(std::move(on_change)),
      thread_([this] { Run(); }) {}

EngineWatch::~EngineWatch() {
  {
    base::MutexLock lock(&mutex_);
    over_ = true;
  }
  wake_.Signal();
  thread_.join();
}

void EngineWatch::Run() {
  const absl::Duration interval = std::min(timeout_ / 4, absl::Seconds(1));
  bool silent = false;
  while (true) {
    {
      base::MutexLock lock(&mutex_);
      if (!over_) {
        wake_.WaitWithTimeout(&mutex_, interval);
      }
      if (over_) {
        return;
      }
    }
    const batching::LoadSnapshot load = scheduler_.load();
    const absl::Duration age = absl::Now() - load.last_progress;
    // An idle engine thread sleeps; it has nothing to hang in.
    if ((load.running > 0 && age > timeout_) != silent) {
      silent = !silent;
      if (silent) {
        base::Logf(base::LogLevel::kError, "server",
                   "the engine has made no progress for %s: NOT_SERVING until it does",
                   absl::FormatDuration(age));
      } else {
        base::Logf(base::LogLevel::kInfo, "server", "the engine goes on (its heartbeat is %s old)",
                   absl::FormatDuration(age));
      }
      on_change_(silent);
    }
  }
}

}  // namespace comoe::server
