#include "server/worker_pool.h"

#include <pthread.h>

#include <utility>

namespace comoe::server {

void NameThisThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

WorkerPool::WorkerPool(int num_threads, const std::string& name, std::size_t max_pending)
    : max_pending_(max_pending) {
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

bool WorkerPool::Post(Task task) {
  base::MutexLock lock(&mutex_);
  if (tasks_.size() >= max_pending_) {
    return false;
  }
  tasks_.push_back(std::move(task));
  wake_.Signal();
  return true;
}

void WorkerPool::Run() {
  while (true) {
    Task task;
    {
      base::MutexLock lock(&mutex_);
      while (!stopping_ && tasks_.empty()) {
        wake_.Wait(&mutex_);
      }
      if (tasks_.empty()) {
        return;
      }
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    std::move(task)();
  }
}

}  // namespace comoe::server
