// Runs a director over recorded routing without an engine: every copy arrives at once, or fails if told so.
// For comparing policies, and for holding a director to its contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "engine/base/stage.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

struct TraceStep {
  api::StepPlan plan;
  std::vector<std::int32_t> experts;  // [MoE layers, T, k], rows in the order of the plan's spans
};

// Routing of several sequences of one length, as trace files hold it.
struct RoutingTrace {
  std::int32_t num_sequences = 0;
  std::int32_t num_tokens = 0;  // of each sequence
  std::int32_t num_moe_layers = 0;
  std::int32_t experts_per_token = 0;  // k
  std::vector<std::uint16_t> experts;  // [sequences, tokens, MoE layers, k], best first
};

// Decode steps: `batch` of the sequences at a time in lockstep, a token each, group after group; sequences
// that do not fill a last group are left out. At most max_steps. Token t is told to lie at position t + 1, so
// that all of them count as decodes. `sequences` are indices into the trace.
std::vector<TraceStep> LockstepSteps(const RoutingTrace& trace, absl::Span<const std::int32_t> sequences,
                                     std::int32_t batch, std::int64_t max_steps);

// Appends to a step a span of rows [first_token, first_token + num_tokens) of a sequence, first token's
// position as given. Other spans keep their order.
void AppendSpan(const RoutingTrace& trace, std::int32_t sequence, std::int32_t first_token,
                std::int32_t num_tokens, std::int64_t position, TraceStep* step);

enum class CopyFault { kNone, kFails, kLosesSlot };

struct ReplayOptions {
  api::LaneState lanes;  // what the director is told, at every call
  // What becomes of a copy that a decision or an order asks for; none: all arrive.
  std::function<CopyFault(base::Tier tier, std::int32_t slot, base::ExpertKey key)> fault;
};

// In experts: multiply by a blob's bytes. A lookup is one expert that one layer of one step needs.
struct ReplayTotals {
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t lookups = 0;
  std::int64_t hits = 0;
  std::int64_t fetched_kept = 0;    // misses copied into a slot...
  std::int64_t fetched_staged = 0;  // ...or through staging
  std::int64_t host = 0;            // misses computed by the host
  std::int64_t prefetched = 0;      // orders into device slots
  std::int64_t prefetched_used = 0;
  std::int64_t prefetched_wasted = 0;  // displaced unused; the rest is not decided yet
  std::int64_t promoted = 0;           // orders into pinned slots
  std::int64_t warmup = 0;
  std::int64_t failed = 0;

  double hit_rate() const {
    return lookups == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(lookups);
  }
  std::int64_t copied() const { return fetched_kept + fetched_staged + prefetched; }
  // Copies for the device over those of a policy that keeps nothing.
  double copied_share() const {
    return lookups == 0 ? 0.0 : static_cast<double>(copied()) / static_cast<double>(lookups);
  }
};

// Plays the engine's part, step by step. Not thread-safe.
class Replayer {
 public:
  // Asks the director for what lies where at start. `director` is used as long as this lives.
  Replayer(const TierShape& shape, const ReplayOptions& options, api::ExpertDirector* director);

  // INTERNAL if the director breaks its contract (the message says how); INVALID_ARGUMENT if the step does
  // not fit the shape.
  absl::Status Step(const TraceStep& step);
  const ReplayTotals& totals() const { return totals_; }
  // What lies where, by the director's orders.
  base::ExpertKey device_key(std::int32_t slot) const { return device_[static_cast<std::size_t>(slot)].key; }

 private:
  struct Slot {
    base::ExpertKey key{-1, -1};  // layer -1: empty
    bool lost = false;
    bool unused_guess = false;
  };

  absl::Status RunLayer(std::int32_t layer, absl::Span<const std::int32_t> experts);
  absl::Status CheckMap(std::int32_t layer);
  absl::Status RunDecisions(std::int32_t layer);
  absl::Status RunOrders(std::int32_t layer);
  // Carries one copy into a slot out, having checked that it may be asked for.
  absl::Status Fill(base::ExpertKey key, base::Tier tier, std::int32_t slot, bool guess);
  absl::Status CheckTarget(base::ExpertKey key, base::Tier tier, std::int32_t slot) const;
  void Displace(Slot* slot);
  bool IsNeeded(base::ExpertKey key) const;
  std::vector<Slot>& SlotsOf(base::Tier tier) { return tier == base::Tier::kDevice ? device_ : pinned_; }

  const TierShape shape_;
  const ReplayOptions options_;
  api::ExpertDirector& director_;
  absl::Status initial_;
  std::vector<Slot> device_;
  std::vector<Slot> pinned_;
  std::int32_t needed_layer_ = -1;
  std::vector<std::int32_t> rows_needing_;  // [num_experts], of needed_layer_
  std::vector<api::ExpertDemand> misses_;
  std::vector<api::MissDecision> decisions_;
  std::vector<api::FetchOrder> orders_;
  std::vector<float> weights_;                              // [T, k], all equal
  std::vector<std::pair<base::Tier, std::int32_t>> named_;  // slots named in the call at hand
  ReplayTotals totals_;
};

// All steps; stops at the first error.
absl::StatusOr<ReplayTotals> RunTrace(const TierShape& shape, absl::Span<const TraceStep> steps,
                                      const ReplayOptions& options, api::ExpertDirector* director);

}  // namespace comoe::routing
