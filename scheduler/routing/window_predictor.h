// The simple predictor: how often the last rows of a layer used each expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/routing/predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// A sliding window of the last `window` rows of each layer. Observing a row costs O(k).
class WindowPredictor final : public Predictor {
 public:
  WindowPredictor(const TierShape& shape, std::int32_t window);

  absl::string_view name() const override { return "window"; }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  // Count over rows held.
  void Forecast(std::int32_t layer, absl::Span<float> probabilities) const override;

  // How many rows of the window used each expert of the layer.
  absl::Span<const std::int32_t> counts(std::int32_t layer) const {
    return absl::MakeConstSpan(counts_).subspan(static_cast<std::size_t>(layer) * num_experts_, num_experts_);
  }
  std::int32_t num_rows(std::int32_t layer) const { return held_[static_cast<std::size_t>(layer)]; }

 private:
  const std::size_t num_experts_;
  const std::size_t experts_per_token_;
  const std::size_t window_;
  std::vector<std::int32_t> counts_;  // [num_layers, num_experts]
  std::vector<std::int32_t> rows_;    // [num_layers, window, k], a ring for each layer
  std::vector<std::int32_t> held_;    // [num_layers]
  std::vector<std::size_t> next_;     // [num_layers]: the ring's oldest row, once it is full
};

}  // namespace comoe::routing
