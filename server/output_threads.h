// The threads that turn tokens into text and start writes, so that neither the engine thread nor gRPC's
// callback threads do (64 writes from the engine thread cost 0.6 ms, a good part of a step).
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "engine/base/sync.h"

namespace comoe::server {

// Something with output to do. Bound to one output thread for its life, so its RunOutput never runs twice at
// once and what only RunOutput touches needs no lock.
class OutputTask {
 public:
  virtual ~OutputTask() = default;
  // Does what there is to do now and returns; never blocks. Called after each Wake (several may share one
  // call) and about every OutputThreads::kTick for time-outs.
  virtual void RunOutput() = 0;
  // RunOutput has nothing to do any more. Called by the output thread.
  virtual bool output_done() const = 0;

 private:
  friend class OutputThreads;
  std::atomic<bool> queued_{false};
  std::size_t lane_ = 0;  // set by Add
};

// Thread-safe.
class OutputThreads {
 public:
  static constexpr absl::Duration kTick = absl::Milliseconds(250);

  OutputThreads(int num_threads, const std::string& name);
  // Runs what is queued, then joins.
  ~OutputThreads();
  OutputThreads(const OutputThreads&) = delete;
  OutputThreads& operator=(const OutputThreads&) = delete;

  // Binds `task` to a thread. Once, before the first Wake.
  void Add(const std::shared_ptr<OutputTask>& task);
  // RunOutput runs soon. Cheap (one lock) and harmless when the task is done.
  void Wake(std::shared_ptr<OutputTask> task) { Enqueue(std::move(task), /*signal=*/true); }
  // The same for somebody who wakes many tasks at once and then calls Flush: until then the threads may
  // sleep, and each is waken by the system once.
  void WakeLater(std::shared_ptr<OutputTask> task) { Enqueue(std::move(task), /*signal=*/false); }
  void Flush();
  // RunOutput runs once more when that time has passed, if the task still lives.
  void WakeAfter(const std::shared_ptr<OutputTask>& task, absl::Duration delay);

 private:
  struct Lane {
    base::Mutex mutex;
    base::CondVar wake;
    std::vector<std::shared_ptr<OutputTask>> queue ABSL_GUARDED_BY(mutex);
    std::vector<std::weak_ptr<OutputTask>> added ABSL_GUARDED_BY(mutex);
    std::multimap<absl::Time, std::weak_ptr<OutputTask>> timers ABSL_GUARDED_BY(mutex);
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    std::atomic<bool> unsignalled{false};  // something was queued, and the thread not told
    std::thread thread;
  };
  void Enqueue(std::shared_ptr<OutputTask> task, bool signal);
  static void Run(Lane& lane);
  // Waits for work until `until` or a timer; false: there is none any more, and it is to stop.
  static bool TakeWork(Lane& lane, absl::Time until, std::vector<std::shared_ptr<OutputTask>>* batch,
                       std::vector<std::weak_ptr<OutputTask>>* watched);

  std::atomic<std::size_t> next_lane_{0};
  std::vector<std::unique_ptr<Lane>> lanes_;  // constant after construction
};

}  // namespace comoe::server
