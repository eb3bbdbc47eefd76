// Mutex, MutexLock and CondVar for the whole project.
//
// Debian's Abseil is built without ThreadSanitizer, which then sees nothing of absl::Mutex and reports every
// field it guards. So a TSan build uses the standard library's, which TSan intercepts. absl::Condition is not
// offered: wait in a loop on a CondVar.
#pragma once

#include "absl/base/thread_annotations.h"

#if defined(__SANITIZE_THREAD__)
#define COMOE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COMOE_TSAN 1
#endif
#endif

#ifdef COMOE_TSAN
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"
#else
#include "absl/synchronization/mutex.h"
#endif

namespace comoe::base {

#ifdef COMOE_TSAN

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class CondVar {
 public:
  void Wait(Mutex* mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    var_.wait(lock);
    lock.release();
  }
  // True when the time ran out.
  bool WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const auto until = std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout);
    const bool expired = var_.wait_until(lock, until) == std::cv_status::timeout;
    lock.release();
    return expired;
  }
  void Signal() { var_.notify_one(); }
  void SignalAll() { var_.notify_all(); }

 private:
  std::condition_variable var_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

#else

using Mutex = absl::Mutex;
using MutexLock = absl::MutexLock;
using CondVar = absl::CondVar;

#endif

}  // namespace comoe::base
