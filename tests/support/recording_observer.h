// A RequestObserver that remembers what it heard and in which order.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/sync.h"
#include "scheduler/batching/request.h"

namespace comoe::testing {

// Thread-safe.
class RecordingObserver final : public batching::RequestObserver {
 public:
  void OnStarted(std::int64_t cached_prompt_tokens) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPromptScores(absl::Span<const api::LogprobRow> scores) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTokens(absl::Span<const batching::GeneratedToken> tokens) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(const batching::RequestOutcome& outcome) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Called on the scheduler's thread at the end of OnTokens, outside the lock. Set it before Submit.
  std::function<void()> on_tokens;

  // Block until it happened.
  void WaitStarted() ABSL_LOCKS_EXCLUDED(mutex_);
  void WaitTokens(std::size_t count) ABSL_LOCKS_EXCLUDED(mutex_);  // or the end
  batching::RequestOutcome WaitFinished() ABSL_LOCKS_EXCLUDED(mutex_);

  bool started() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool finished() const ABSL_LOCKS_EXCLUDED(mutex_);
  int num_finished() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<base::TokenId> tokens() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<api::LogprobRow> logprobs() const ABSL_LOCKS_EXCLUDED(mutex_);  // of `tokens`
  std::vector<api::LogprobRow> prompt_scores() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What broke the interface's promised order, in words; empty if nothing did.
  std::string violation() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Require(bool condition, const char* what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  int num_finished_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<base::TokenId> tokens_ ABSL_GUARDED_BY(mutex_);
  std::vector<api::LogprobRow> logprobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<api::LogprobRow> prompt_scores_ ABSL_GUARDED_BY(mutex_);
  batching::RequestOutcome outcome_ ABSL_GUARDED_BY(mutex_);
  std::string violation_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::testing
