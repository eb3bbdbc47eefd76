// Admits requests, decides what each step of the engine computes, and tells every request's owner the
// outcome.
//
// One thread of its own (the engine thread) is the only one that touches the engine, the sequence table and
// the KV block manager. Submit, Cancel and the rest are thread-safe and only put a message in its mailbox.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "engine/api/step_costs.h"
#include "engine/base/metrics_sink.h"
#include "scheduler/batching/request.h"

namespace comoe::batching {

// Numbers below 1 count as 1, but where 0 is said to mean something.
struct SchedulerOptions {
  std::int64_t max_waiting_requests = 256;
  std::int64_t max_waiting_tokens = std::int64_t{1} << 20;  // of all waiting prompts; one alone may be longer
  std::int64_t max_batch_tokens = 512;                      // rows of a step; capped by the engine's
  std::int64_t max_chunk_tokens = 0;      // of one prompt in a step; below 1: max_batch_tokens
  std::int64_t max_sequences = 1;         // running at once; capped by the engine's
  bool reuse_prefixes = true;             // blocks of earlier requests that begin alike
  const api::StepCosts* costs = nullptr;  // outlives the scheduler; null: ConstantStepCosts
  // Called on the scheduler's thread whenever it has told observers of something and goes on to something
  // that takes time: observers may leave waking others to it.
  std::function<void()> told;
  // Called once, on the scheduler's thread, when the engine cannot go on (Engine::health): running requests have
  // ended with that status, and so does everything that comes.
  std::function<void(const absl::Status&)> engine_failed;
  std::function<absl::Time()> now;  // thread-safe; absl::Now if empty. Tests set a clock of their own.
};

// What is going on, for health, GetLoads and metrics.
struct LoadSnapshot {
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t waiting_tokens = 0;  // whose rows are still to be computed
  std::int64_t used_blocks = 0;
  std::int64_t cached_blocks = 0;  // free, and of use to requests that begin alike
  std::int64_t total_blocks = 0;
  // The engine thread's heartbeat: between steps, and every few seconds while idle. Old: a step hangs.
  absl::Time last_progress = absl::InfinitePast();
};

enum class CancelReason {
  kAborted,      // nobody wants the completion any more
  kStopMatched,  // it has reached a stop string
};

struct Submission {
  Request request;
  std::shared_ptr<RequestObserver> observer;
};

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Queues a request whose fields are valid for the model. Refuses (and never calls the observer):
  // INVALID_ARGUMENT it can never fit, ALREADY_EXISTS the id is in flight, RESOURCE_EXHAUSTED the queue is
  // full, UNAVAILABLE draining, DEADLINE_EXCEEDED the deadline has passed.
  absl::Status Submit(Request request, std::shared_ptr<RequestObserver> observer) {
    std::vector<Submission> one;
    one.push_back({std::move(request), std::move(observer)});
    return SubmitAll(std::move(one));
  }
  // All of them, in their order and with nobody between them, or none.
  virtual absl::Status SubmitAll(std::vector<Submission> submissions) = 0;
  // Ends the request with kAborted or kStopString, wherever it is. False if no such request is in flight.
  // Idempotent: the first reason stays.
  virtual bool Cancel(absl::string_view request_id, CancelReason reason = CancelReason::kAborted) = 0;
  virtual LoadSnapshot load() const = 0;

  // Forgets the prefixes in memory, so that the next requests compute all of theirs, and tells how many
  // blocks that made free. `done` is called on the scheduler's thread, soon, once. FAILED_PRECONDITION while
  // requests run, unless `force`; UNAVAILABLE once the scheduler has stopped.
  virtual void ForgetPrefixes(bool force, std::function<void(absl::StatusOr<std::int64_t>)> done) = 0;

  // Refuses new requests from now on and ends those that wait and have never run (kDraining, UNAVAILABLE).
  virtual void BeginDrain() = 0;
  // Blocks until nothing is in flight or the time has come, then ends what is left (kDraining) and stops the
  // thread. A step under way is waited for. True if everything had finished by itself. Implies BeginDrain.
  // Not to be called by an observer.
  virtual bool Stop(absl::Time until) = 0;
};

// `engine` and `metrics` outlive the scheduler; from here on only its thread calls `engine`. Destroying the
// scheduler stops it at once.
std::unique_ptr<Scheduler> MakeScheduler(api::Engine& engine, const SchedulerOptions& options,
                                         base::MetricsSink& metrics);

}  // namespace comoe::batching
