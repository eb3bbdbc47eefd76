#include "engine/base/thread_pool.h"

#include <pthread.h>

#include <algorithm>

#include "engine/base/check.h"

namespace comoe::base {

ThreadPool::ThreadPool(int num_threads, const std::string& name) {
  COMOE_CHECK(num_threads >= 1, "a pool counts its caller");
  for (int worker = 1; worker < num_threads; ++worker) {
    threads_.emplace_back([this, worker] { Run(worker); });
    pthread_setname_np(threads_.back().native_handle(), name.substr(0, 15).c_str());
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    start_.SignalAll();
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadPool::ParallelFor(std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t, int)> fn) {
  if (threads_.empty() || num_tasks <= 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) {
      fn(task, 0);
    }
    return;
  }
  {
    MutexLock lock(&mutex_);
    COMOE_DCHECK(unfinished_ == 0, "ParallelFor has one caller and does not nest");
    fn_ = &fn;
    num_tasks_ = num_tasks;
    next_task_ = 0;
    unfinished_ = num_tasks;
    start_.SignalAll();
  }
  Work(0);
  MutexLock lock(&mutex_);
  while (unfinished_ != 0) {
    done_.Wait(&mutex_);
  }
  fn_ = nullptr;
}

void ThreadPool::Work(int worker) {
  mutex_.Lock();
  while (next_task_ < num_tasks_) {
    const std::int64_t task = next_task_++;
    const absl::FunctionRef<void(std::int64_t, int)>& fn = *fn_;
    mutex_.Unlock();
    fn(task, worker);
    mutex_.Lock();
    if (--unfinished_ == 0) {
      done_.Signal();
    }
  }
  mutex_.Unlock();
}

void ThreadPool::Run(int worker) {
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && next_task_ >= num_tasks_) {
        start_.Wait(&mutex_);
      }
      if (stopping_) {
        return;
      }
    }
    Work(worker);
  }
}

}  // namespace comoe::base
