// How often each expert was used, the past fading away: the baseline of eviction scores, and a predictor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/routing/predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Each step multiplies what was counted before by `decay`. Nothing is multiplied, though: new uses count more
// instead, and the whole is scaled down before it overflows. Observing a row costs O(k).
class DecayedCounts final : public Predictor {
 public:
  // The best decay of the trace study is .97 a step.
  explicit DecayedCounts(const TierShape& shape, double decay = 0.97);

  absl::string_view name() const override { return "decayed"; }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    Observe(layer, experts, 1.0);
  }
  // `stake`: what each expert's absence would have cost in this step.
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts, double stake);
  // Decayed count of rows that used the expert over decayed count of rows.
  void Forecast(std::int32_t layer, absl::Span<float> probabilities) const override;

  // Sets what StepUses and Stake say, [num_layers, num_experts], and with it the forecasts.
  void Restore(absl::Span<const float> step_uses);

  // Decayed number of steps in which any row used the expert: at most 1 / (1 - decay).
  double StepUses(base::ExpertKey key) const { return Decayed(step_uses_, key); }
  // Decayed sum of the stakes of these steps.
  double Stake(base::ExpertKey key) const { return Decayed(stakes_, key); }

 private:
  struct Layer {
    double unit = 1.0;  // what a use in the latest step counts
    double rows = 0.0;
    std::uint64_t step = 0;
  };

  double Decayed(const std::vector<double>& sums, base::ExpertKey key) const {
    return sums[static_cast<std::size_t>(key.layer) * num_experts_ + static_cast<std::size_t>(key.expert)] /
           layers_[static_cast<std::size_t>(key.layer)].unit;
  }
  void Rescale(std::size_t layer);

  const std::size_t num_experts_;
  const std::size_t experts_per_token_;
  const double decay_;
  std::vector<Layer> layers_;             // [num_layers]
  std::vector<double> row_uses_;          // [num_layers, num_experts]
  std::vector<double> step_uses_;         // [num_layers, num_experts]
  std::vector<double> stakes_;            // [num_layers, num_experts]
  std::vector<std::uint64_t> last_step_;  // [num_layers, num_experts]: the latest step that was counted
};

}  // namespace comoe::routing
