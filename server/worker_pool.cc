#include "server/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace comoe::server {

void NameThisThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

WorkerPool::WorkerPool(int num_threads, const std::string& name, const Bounds& bounds) : bounds_(bounds) {
  for (int i = 0; i < num_threads; ++i) {
    threads_.emplace_back([this, name] {
      NameThisThread(name);
      Run();
    });
  }
}

WorkerPool::~WorkerPool() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.SignalAll();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool WorkerPool::Post(Urgency urgency, std::size_t bytes, Task task) {
  base::MutexLock lock(&mutex_);
  if (num_pending_ > 0 && (num_pending_ >= bounds_.tasks || bytes > bounds_.bytes - pending_bytes_)) {
    return false;
  }
  if (bounds_.tasks == 0) {
    return false;
  }
  ++num_pending_;
  pending_bytes_ += std::min(bytes, bounds_.bytes);
  pending_[static_cast<std::size_t>(urgency)].push_back({std::min(bytes, bounds_.bytes), std::move(task)});
  wake_.Signal();
  return true;
}

void WorkerPool::Run() {
  while (true) {
    Task task;
    {
      base::MutexLock lock(&mutex_);
      while (!stopping_ && num_pending_ == 0) {
        wake_.Wait(&mutex_);
      }
      if (num_pending_ == 0) {
        return;
      }
      std::deque<Pending>& first = pending_[0].empty() ? pending_[1] : pending_[0];
      task = std::move(first.front().task);
      --num_pending_;
      pending_bytes_ -= first.front().bytes;
      first.pop_front();
    }
    std::move(task)();
  }
}

}  // namespace comoe::server
