// Time that moves when a test says so.
#pragma once

#include "absl/time/time.h"
#include "engine/base/sync.h"

namespace comoe::testing {

// Thread-safe.
class ManualClock {
 public:
  absl::Time Now() const ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration by) ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    now_ += by;
  }

 private:
  mutable base::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000'000);
};

}  // namespace comoe::testing
