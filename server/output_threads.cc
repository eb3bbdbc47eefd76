#include "server/output_threads.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "server/worker_pool.h"

namespace comoe::server {

OutputThreads::OutputThreads(int num_threads, const std::string& name) {
  for (int i = 0; i < num_threads; ++i) {
    lanes_.push_back(std::make_unique<Lane>());
    Lane& lane = *lanes_.back();
    lane.thread = std::thread([&lane, name] {
      NameThisThread(name);
      Run(lane);
    });
  }
}

OutputThreads::~OutputThreads() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    {
      base::MutexLock lock(&lane->mutex);
      lane->stopping = true;
    }
    lane->wake.Signal();
    lane->thread.join();
  }
}

void OutputThreads::Add(const std::shared_ptr<OutputTask>& task) {
  task->lane_ = next_lane_.fetch_add(1, std::memory_order_relaxed) % lanes_.size();
  Lane& lane = *lanes_[task->lane_];
  base::MutexLock lock(&lane.mutex);
  lane.added.push_back(task);
}

void OutputThreads::Enqueue(std::shared_ptr<OutputTask> task, bool signal) {
  // A task that is queued will see what its waker has done: queued_ is cleared before RunOutput looks.
  if (task->queued_.exchange(true, std::memory_order_acq_rel)) {
    if (signal) {
      Flush();  // it may be queued by somebody who is in no hurry
    }
    return;
  }
  Lane& lane = *lanes_[task->lane_];
  base::MutexLock lock(&lane.mutex);
  lane.queue.push_back(std::move(task));
  if (signal) {
    lane.wake.Signal();
  } else {
    lane.unsignalled.store(true, std::memory_order_relaxed);
  }
}

void OutputThreads::Flush() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (lane->unsignalled.load(std::memory_order_relaxed) &&
        lane->unsignalled.exchange(false, std::memory_order_relaxed)) {
      base::MutexLock lock(&lane->mutex);
      lane->wake.Signal();
    }
  }
}

void OutputThreads::WakeAfter(const std::shared_ptr<OutputTask>& task, absl::Duration delay) {
  Lane& lane = *lanes_[task->lane_];
  base::MutexLock lock(&lane.mutex);
  lane.timers.emplace(absl::Now() + delay, task);
  lane.wake.Signal();
}

bool OutputThreads::TakeWork(Lane& lane, absl::Time until, std::vector<std::shared_ptr<OutputTask>>* batch,
                             std::vector<std::weak_ptr<OutputTask>>* watched) {
  base::MutexLock lock(&lane.mutex);
  while (lane.queue.empty() && !lane.stopping) {
    const absl::Time next = lane.timers.empty() ? until : std::min(until, lane.timers.begin()->first);
    const absl::Duration left = next - absl::Now();
    if (left <= absl::ZeroDuration()) {
      break;
    }
    lane.wake.WaitWithTimeout(&lane.mutex, left);
  }
  if (lane.queue.empty() && lane.stopping) {
    return false;
  }
  batch->swap(lane.queue);
  const absl::Time now = absl::Now();
  while (!lane.timers.empty() && lane.timers.begin()->first <= now) {
    if (std::shared_ptr<OutputTask> task = lane.timers.begin()->second.lock(); task != nullptr) {
      batch->push_back(std::move(task));
    }
    lane.timers.erase(lane.timers.begin());
  }
  watched->insert(watched->end(), lane.added.begin(), lane.added.end());
  lane.added.clear();
  return true;
}

void OutputThreads::Run(Lane& lane) {
  std::vector<std::shared_ptr<OutputTask>> batch;
  std::vector<std::weak_ptr<OutputTask>> watched;
  absl::Time next_tick = absl::Now() + kTick;
  while (TakeWork(lane, next_tick, &batch, &watched)) {
    for (const std::shared_ptr<OutputTask>& task : batch) {
      task->queued_.store(false, std::memory_order_release);
      task->RunOutput();
    }
    batch.clear();
    if (absl::Now() < next_tick) {
      continue;
    }
    next_tick = absl::Now() + kTick;
    std::vector<std::weak_ptr<OutputTask>> alive;
    for (std::weak_ptr<OutputTask>& weak : watched) {
      const std::shared_ptr<OutputTask> task = weak.lock();
      if (task == nullptr || task->output_done()) {
        continue;
      }
      task->RunOutput();
      alive.push_back(std::move(weak));
    }
    watched.swap(alive);
  }
}

}  // namespace comoe::server
