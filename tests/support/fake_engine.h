// An engine without a model: it remembers which token lies in which cell of which block, as a real one does,
// and makes the next token out of what it reads back. A scheduler that hands out a wrong, stale or shared
// block gets wrong tokens and a violation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/engine.h"
#include "engine/base/sync.h"

namespace comoe::testing {

struct FakeEngineOptions {
  std::int32_t vocab_size = 64;
  std::vector<base::TokenId> eos_token_ids;
  std::vector<api::CacheGroup> cache_groups;  // empty: one full group with blocks of 4 positions
  std::vector<std::int32_t> num_blocks;       // of each group
  std::int64_t max_rows = 16;
  std::int64_t max_sequences = 8;
  std::int64_t max_positions = 64;
};

// Step is the scheduler thread's; the rest is thread-safe.
class FakeEngine final : public api::Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options);

  // The token that follows `history`, whatever it was cut into and whatever ran beside it.
  // Never one of `masked`, unless those are all.
  static base::TokenId NextToken(absl::Span<const base::TokenId> history, std::uint64_t seed,
                                 std::int32_t vocab_size, absl::Span<const base::TokenId> masked = {});
  base::TokenId NextToken(absl::Span<const base::TokenId> history, std::uint64_t seed,
                          absl::Span<const base::TokenId> masked = {}) const {
    return NextToken(history, seed, model_info_.vocab_size, masked);
  }
  // What it says of `token` after `history`, with that many alternatives.
  static api::LogprobRow Logprobs(absl::Span<const base::TokenId> history, base::TokenId token,
                                  std::int32_t num_top);

  const api::ModelInfo& model_info() const override { return model_info_; }
  const api::EngineCapacity& capacity() const override { return capacity_; }
  absl::StatusOr<api::StepResult> Step(const api::StepPlan& plan) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status health() const override ABSL_LOCKS_EXCLUDED(mutex_);
  void HintPrompt(absl::Span<const base::TokenId> tokens) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Truncate(base::SequenceId sequence, std::int64_t num_tokens) override;
  absl::StatusOr<api::StateSnapshot> Snapshot(const std::vector<api::GroupState>& groups,
                                              std::int64_t num_tokens) override;
  absl::Status Restore(const api::StateSnapshot& snapshot,
                       const std::vector<api::GroupState>& groups) override;

  // The n-th step to begin from now (0: the next) fails, having written rubbish where its rows go.
  void FailStep(std::int64_t n, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // The step after which it cannot go on: that one and all later ones fail.
  void Lose(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // In the next step that has so many spans, that one fails and no other, having written rubbish.
  void FailSpan(std::size_t index, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on a step waits, after it has begun, until it is permitted.
  void Hold() ABSL_LOCKS_EXCLUDED(mutex_);
  void Permit(std::int64_t steps) ABSL_LOCKS_EXCLUDED(mutex_);
  void Release() ABSL_LOCKS_EXCLUDED(mutex_);
  // Blocks until a step waits; false if none does within `timeout`.
  bool WaitHeld(absl::Duration timeout = absl::Seconds(60)) ABSL_LOCKS_EXCLUDED(mutex_);

  // What was told of prompts that wait, and before which step.
  struct Hint {
    std::int64_t step = 0;
    std::vector<base::TokenId> tokens;
  };
  std::vector<Hint> hints() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<api::StepPlan> plans() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::int64_t num_steps() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What was wrong with the plans, a line each.
  std::vector<std::string> violations() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Plans are not kept any more: for long tests.
  void ForgetPlans() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Cell {
    base::SequenceId sequence;
    std::int64_t position = -1;
    base::TokenId token = -1;
    // All tokens up to this one: a cell may serve another sequence only if that begins with the same.
    std::shared_ptr<const std::vector<base::TokenId>> history;
  };

  void WaitUntilPermitted() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckPlan(const api::StepPlan& plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckLogits(const api::PlanSpan& span) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CheckSpan(const api::PlanSpan& span) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A span need not go on where its sequence was: it may begin behind a prefix that others have computed, and
  // it may go back to one when it lost its blocks.
  void Resume(const api::PlanSpan& span) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Report(const api::PlanSpan& span, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // nullptr where the plan names no block for it.
  Cell* CellAt(const api::PlanSpan& span, std::size_t group, std::int64_t position)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteRows(const api::PlanSpan& span, bool rubbish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The tokens of positions [0, end) as the blocks hold them; reports what is not there.
  std::vector<base::TokenId> ReadHistory(const api::PlanSpan& span, std::int64_t end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const api::ModelInfo model_info_;
  const api::EngineCapacity capacity_;

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<std::vector<Cell>> pools_ ABSL_GUARDED_BY(mutex_);  // [group][block * block_tokens + offset]
  // What a windowed group no longer holds, for the hash: tokens of each sequence by position.
  absl::flat_hash_map<base::SequenceId, std::vector<base::TokenId>> histories_ ABSL_GUARDED_BY(mutex_);
  std::vector<api::StepPlan> plans_ ABSL_GUARDED_BY(mutex_);
  std::vector<Hint> hints_ ABSL_GUARDED_BY(mutex_);
  bool keep_plans_ ABSL_GUARDED_BY(mutex_) = true;
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
  std::int64_t num_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  std::size_t failing_span_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status span_failure_ ABSL_GUARDED_BY(mutex_);  // OK: none is to fail
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::int64_t, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);  // by step
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;  // a step waits
  std::int64_t permits_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace comoe::testing
