// Lets one thread give up on an RPC while another may be ending it. gRPC frees an RPC's context right after
// OnDone, and giving up (TryCancel) needs the context: so OnDone waits for a cancel that is under way, and
// none begins after it. The cancel may itself run OnDone, on its own stack, which must not wait.
#pragma once

#include <thread>

#include "engine/base/sync.h"

namespace comoe::server {

// Thread-safe.
class AbandonGate {
 public:
  // False: it is closed, and the RPC must not be touched. True: Leave must follow, after the cancel.
  [[nodiscard]] bool Enter() ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    if (closed_) {
      return false;
    }
    inside_ = true;
    cancelling_thread_ = std::this_thread::get_id();
    return true;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    inside_ = false;
    left_.SignalAll();
  }
  // From OnDone. Blocks for no longer than a cancel takes, which waits for no callback.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    while (inside_ && cancelling_thread_ != std::this_thread::get_id()) {
      left_.Wait(&mutex_);
    }
    closed_ = true;
  }
  bool closed() const ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  mutable base::Mutex mutex_;
  base::CondVar left_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool inside_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id cancelling_thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::server
