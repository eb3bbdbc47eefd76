#include "server/serving_state.h"

#include <utility>

#include "absl/time/clock.h"
#include "engine/base/check.h"

namespace comoe::server {

void ServingState::SetBackend(Backend backend) {
  base::MutexLock lock(&mutex_);
  COMOE_CHECK(backend_ == nullptr, "a backend is set once");
  backend_ = std::make_unique<const Backend>(std::move(backend));
  published_.store(backend_.get(), std::memory_order_release);
}

void ServingState::SetPhase(Phase phase) {
  base::MutexLock lock(&mutex_);
  if (phase > phase_.load(std::memory_order_relaxed)) {
    phase_.store(phase, std::memory_order_release);
  }
}

absl::StatusOr<const Backend*> ServingState::Accept() const {
  switch (phase()) {
    case Phase::kLoading:
      return absl::UnavailableError("the model is still loading: try again later");
    case Phase::kDraining:
      return absl::UnavailableError("the server is shutting down: try another");
    case Phase::kServing:
      break;
  }
  if (stalled_.load(std::memory_order_acquire)) {
    return absl::UnavailableError("the engine makes no progress: try another server");
  }
  return backend();
}

absl::StatusOr<const Backend*> ServingState::Loaded() const {
  const Backend* loaded = backend();
  if (loaded == nullptr) {
    return absl::UnavailableError("the model is still loading: try again later");
  }
  return loaded;
}

void ServingState::OpenGeneration() {
  base::MutexLock lock(&mutex_);
  open_generations_.fetch_add(1, std::memory_order_relaxed);
}

void ServingState::CloseGeneration() {
  base::MutexLock lock(&mutex_);
  if (open_generations_.fetch_sub(1, std::memory_order_relaxed) == 1) {
    idle_.SignalAll();
  }
}

bool ServingState::WaitUntilIdle(absl::Time until) {
  base::MutexLock lock(&mutex_);
  while (open_generations_.load(std::memory_order_relaxed) > 0) {
    const absl::Time now = absl::Now();
    if (now >= until) {
      return false;
    }
    idle_.WaitWithTimeout(&mutex_, until - now);
  }
  return true;
}

}  // namespace comoe::server
