// Which experts of a layer follow which of the layer before, in the same row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// For each pair of neighbouring MoE layers a matrix of counts that fade with time. A row's forecast is the
// mean over the k experts that it just used; for layers further ahead than the next there is none.
class TransitionCounts final : public RowPredictor {
 public:
  explicit TransitionCounts(const TierShape& shape);

  absl::string_view name() const override { return "transition"; }
  void BeginStep(absl::Span<const base::TokenId> tokens) override;
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override;
  // Whether Forecast has anything to say about `target` now.
  bool knows(std::int32_t target) const {
    return last_ >= 0 && next_[static_cast<std::size_t>(last_)] == target;
  }

  void Append(std::vector<std::uint8_t>* bytes) const override;
  bool Restore(absl::Span<const std::uint8_t>* bytes) override;

 private:
  const std::size_t num_experts_;
  const std::size_t experts_per_token_;
  std::vector<std::int32_t> next_;     // [num_layers]: the MoE layer after; -1: none
  std::vector<std::int32_t> before_;   // [num_layers]: the MoE layer before; -1: none
  std::vector<float> counts_;          // [num_layers, E of the layer before, E]
  std::vector<float> totals_;          // [num_layers, E of the layer before]
  std::vector<std::int32_t> experts_;  // [T, k], of `last_`
  std::size_t num_rows_ = 0;
  std::int32_t last_ = -1;  // the latest layer observed in this step; -1: none
};

}  // namespace comoe::routing
