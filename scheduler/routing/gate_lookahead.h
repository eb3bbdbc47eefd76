// Routers of later layers applied early, turned into probabilities by how often such scores came true.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

inline constexpr std::int32_t kMaxLookAhead = 8;

// A score counts by its margin: how far it lies above the midpoint between the row's k-th and (k+1)-th score,
// so that 0 is the threshold of being chosen. For each layer and distance ahead, a curve over bins of the
// margin says how often such an expert was needed.
class GateLookahead final : public RowPredictor {
 public:
  explicit GateLookahead(const TierShape& shape);

  absl::string_view name() const override { return "lookahead"; }
  void BeginStep(absl::Span<const base::TokenId> tokens) override;
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) override;
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override;

  // Log-odds instead of probabilities; `target` has scores.
  void ForecastLogits(std::int32_t target, absl::Span<float> logits);
  // MoE layers between the scores at hand for `target` and itself; 0: there are none.
  std::int32_t distance(std::int32_t target) const { return distance_[static_cast<std::size_t>(target)]; }

 private:
  static constexpr std::int32_t kBins = 40;
  struct Curve {
    std::array<float, kBins> hits{};
    std::array<float, kBins> trials{};
    std::array<float, kBins + 1> logit{};  // at the bins' centres; the last repeats
    std::uint32_t lessons = 0;
  };

  Curve& CurveOf(std::int32_t layer, std::int32_t distance) {
    return curves_[static_cast<std::size_t>(layer) * kMaxLookAhead + static_cast<std::size_t>(distance - 1)];
  }
  std::size_t ScoresOf(std::int32_t layer, std::int32_t distance) const;
  float Threshold(const float* row);
  static void Refresh(Curve* curve);

  const std::size_t num_experts_;
  const std::size_t experts_per_token_;
  std::vector<std::int32_t> index_;     // [num_layers]: among the MoE layers
  std::vector<std::int32_t> distance_;  // [num_layers], of the nearest scores of this step
  std::vector<std::uint32_t> seen_;     // [num_layers]: bit d - 1: scores of distance d of this step
  std::vector<float> positions_;        // see ScoresOf; places among the bins
  std::vector<Curve> curves_;           // [num_layers, kMaxLookAhead]
  std::vector<float> best_;             // scratch, [k + 1]
  std::vector<std::uint8_t> needed_;    // scratch, [E]
  std::size_t num_rows_ = 0;
};

}  // namespace comoe::routing
