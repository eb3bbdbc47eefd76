#include "engine/base/thread_pool.h"

#include <pthread.h>

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/wait_briefly.h"

namespace comoe::base {

ThreadPool::ThreadPool(int num_threads, const std::string& name) {
  COMOE_CHECK(num_threads >= 1, "a pool counts its caller");
  for (int worker = 1; worker < num_threads; ++worker) {
    threads_.emplace_back([this, worker] { Run(worker); });
    pthread_setname_np(threads_.back().native_handle(), name.substr(0, 15).c_str());
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  ++wakes_;
  wakes_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

// Who goes to sleep announces it before it looks a last time, and who makes a change looks for sleepers after
// it, both in the one order of sequentially consistent operations: so one of them sees the other.
void ThreadPool::ParallelFor(std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t, int)> fn) {
  if (threads_.empty() || num_tasks <= 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) {
      fn(task, 0);
    }
    return;
  }
  COMOE_CHECK(num_tasks <= static_cast<std::int64_t>(kNextMask), "tasks are counted in 32 bits");
  COMOE_DCHECK(unfinished_ == 0, "ParallelFor has one caller and does not nest");
  fn_ = &fn;
  unfinished_.store(num_tasks, std::memory_order_relaxed);
  loop_ = static_cast<std::uint64_t>(num_tasks) << kTasksShift;
  if (sleeping_ > 0) {
    ++wakes_;
    WakeWorkers();
  }
  Work(0);
  const auto finished = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (!WaitBriefly(finished)) {
    MutexLock lock(&mutex_);
    caller_sleeps_ = true;
    while (unfinished_ != 0) {
      done_.Wait(&mutex_);
    }
    caller_sleeps_ = false;
  }
}

void ThreadPool::Work(int worker) {
  std::uint64_t loop = loop_.load(std::memory_order_acquire);
  while (HasTask(loop)) {
    if (!loop_.compare_exchange_weak(loop, loop + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    (*fn_)(static_cast<std::int64_t>(loop & kNextMask), worker);
    if (unfinished_.fetch_sub(1) == 1 && caller_sleeps_) {
      WakeCaller();
    }
    loop = loop_.load(std::memory_order_acquire);
  }
}

// Waking a thread takes its waker some microseconds, so who was woken wakes others in turn: fifteen are
// awake after four times that.
void ThreadPool::WakeWorkers() {
  for (int i = 0; i < kWokenByEach && sleeping_ > i; ++i) {
    wakes_.notify_one();
  }
}

void ThreadPool::WakeCaller() {
  MutexLock lock(&mutex_);
  done_.Signal();
}

void ThreadPool::Run(int worker) {
  const auto wanted = [this] { return HasTask(loop_) || stopping_; };
  while (!stopping_) {
    Work(worker);
    if (!WaitBriefly(wanted)) {
      ++sleeping_;
      for (std::uint32_t seen = wakes_; !wanted(); seen = wakes_) {
        wakes_.wait(seen);
      }
      --sleeping_;
      WakeWorkers();
    }
  }
}

}  // namespace comoe::base
