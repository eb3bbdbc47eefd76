// The hub's answers to the composer: what steps have cost, and which sequences share experts.
#pragma once

#include <cstdint>

#include "engine/api/step_costs.h"
#include "scheduler/routing/sequence_profiles.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// For the engine thread, which composes and observes. Step times are a straight line over rows, fitted to the
// measured ones, the past fading; until two different sizes were measured, a millisecond a row.
class HubStepCosts final : public api::StepCosts {
 public:
  HubStepCosts(const TierShape& shape, double window, std::size_t most_sequences)
      : profiles_(shape, window, most_sequences) {}

  void ObserveStep(std::int64_t rows, double seconds);
  SequenceProfiles& profiles() { return profiles_; }

  absl::Duration StepTime(std::int64_t rows, std::int64_t sequences) const override;
  std::int64_t BreakEvenChunk() const override;
  double AddedDemand(absl::Span<const base::SequenceId> chosen, base::SequenceId candidate) const override {
    return profiles_.AddedDemand(chosen, candidate);
  }

 private:
  struct Line {
    double base = 0.0;  // seconds
    double per_row = 1e-3;
  };
  Line Fit() const;

  mutable SequenceProfiles profiles_;  // asking moves what it remembers of `chosen`
  // Fading sums over steps.
  double weight_ = 0.0, rows_ = 0.0, seconds_ = 0.0, rows_rows_ = 0.0, rows_seconds_ = 0.0;
};

}  // namespace comoe::routing
