#include "scheduler/routing/window_predictor.h"

#include <algorithm>

namespace comoe::routing {

WindowPredictor::WindowPredictor(const TierShape& shape, std::int32_t window)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(static_cast<std::size_t>(shape.experts_per_token)),
      window_(static_cast<std::size_t>(window)),
      counts_(shape.num_keys(), 0),
      rows_(static_cast<std::size_t>(shape.num_layers) * window_ * experts_per_token_, 0),
      held_(static_cast<std::size_t>(shape.num_layers), 0),
      next_(static_cast<std::size_t>(shape.num_layers), 0) {}

void WindowPredictor::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  const auto l = static_cast<std::size_t>(layer);
  const absl::Span<std::int32_t> counts = absl::MakeSpan(counts_).subspan(l * num_experts_, num_experts_);
  const absl::Span<std::int32_t> ring =
      absl::MakeSpan(rows_).subspan(l * window_ * experts_per_token_, window_ * experts_per_token_);
  const std::size_t num_rows = experts.size() / experts_per_token_;
  for (std::size_t t = num_rows - std::min(num_rows, window_); t < num_rows; ++t) {
    const absl::Span<std::int32_t> kept = ring.subspan(next_[l] * experts_per_token_, experts_per_token_);
    if (held_[l] == static_cast<std::int32_t>(window_)) {
      for (const std::int32_t expert : kept) {
        --counts[static_cast<std::size_t>(expert)];
      }
    } else {
      ++held_[l];
    }
    for (std::size_t i = 0; i < experts_per_token_; ++i) {
      kept[i] = experts[t * experts_per_token_ + i];
      ++counts[static_cast<std::size_t>(kept[i])];
    }
    next_[l] = (next_[l] + 1) % window_;
  }
}

void WindowPredictor::Forecast(std::int32_t layer, absl::Span<float> probabilities) const {
  const absl::Span<const std::int32_t> layer_counts = counts(layer);
  const auto held = static_cast<float>(std::max(num_rows(layer), 1));
  for (std::size_t e = 0; e < num_experts_; ++e) {
    probabilities[e] = static_cast<float>(layer_counts[e]) / held;
  }
}

}  // namespace comoe::routing
