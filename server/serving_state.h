// Which phase the service is in, what serves requests once there is something, and how many generations are
// open.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/model_info.h"
#include "engine/base/sync.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/batching/scheduler.h"

namespace comoe::server {

// A loaded model and what runs it. Both pointers outlive the server's RPCs.
struct Backend {
  batching::Scheduler* scheduler = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;  // null: the model has none
  api::ModelInfo model;
  std::int64_t max_positions = 0;  // of a sequence
  std::string device;              // what computes, and why that
  double load_seconds = 0;
};

enum class Phase { kLoading, kServing, kDraining };

// Thread-safe. Phases go forward only.
class ServingState {
 public:
  // Makes the backend known; requests are still refused. Once.
  void SetBackend(Backend backend) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetPhase(Phase phase) ABSL_LOCKS_EXCLUDED(mutex_);
  Phase phase() const { return phase_.load(std::memory_order_acquire); }

  // Null while the model loads. Lives as long as this.
  const Backend* backend() const { return published_.load(std::memory_order_acquire); }
  // While the engine hangs, new requests are refused.
  void SetStalled(bool stalled) { stalled_.store(stalled, std::memory_order_release); }
  // For a new request: the backend, or UNAVAILABLE saying whether the model is loading, the engine
  // hangs or the server is draining.
  absl::StatusOr<const Backend*> Accept() const;
  // For a question about the model, which a draining server answers too.
  absl::StatusOr<const Backend*> Loaded() const;

  // A generation RPC is open from its arrival until gRPC is done with it.
  void OpenGeneration() ABSL_LOCKS_EXCLUDED(mutex_);
  void CloseGeneration() ABSL_LOCKS_EXCLUDED(mutex_);
  std::int64_t open_generations() const { return open_generations_.load(std::memory_order_relaxed); }
  // Blocks until none is open or the time has come; true if none is.
  bool WaitUntilIdle(absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  std::atomic<Phase> phase_{Phase::kLoading};
  std::atomic<bool> stalled_{false};
  std::atomic<const Backend*> published_{nullptr};
  std::atomic<std::int64_t> open_generations_{0};  // changed under mutex_, read anywhere
  base::Mutex mutex_;
  base::CondVar idle_;
  std::unique_ptr<const Backend> backend_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::server
