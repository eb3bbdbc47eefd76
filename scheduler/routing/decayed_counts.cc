#include "scheduler/routing/decayed_counts.h"

namespace comoe::routing {
namespace {

constexpr double kLargestUnit = 1e100;

}  // namespace

DecayedCounts::DecayedCounts(const TierShape& shape, double decay)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(static_cast<std::size_t>(shape.experts_per_token)),
      decay_(decay),
      layers_(static_cast<std::size_t>(shape.num_layers)),
      row_uses_(shape.num_keys(), 0.0),
      step_uses_(shape.num_keys(), 0.0),
      stakes_(shape.num_keys(), 0.0),
      last_step_(shape.num_keys(), 0) {}

void DecayedCounts::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts, double stake) {
  const auto l = static_cast<std::size_t>(layer);
  Layer& state = layers_[l];
  ++state.step;
  state.unit /= decay_;
  if (state.unit > kLargestUnit) {
    Rescale(l);
  }
  state.rows += state.unit * static_cast<double>(experts.size() / experts_per_token_);
  for (const std::int32_t expert : experts) {
    const std::size_t i = l * num_experts_ + static_cast<std::size_t>(expert);
    row_uses_[i] += state.unit;
    if (last_step_[i] != state.step) {
      last_step_[i] = state.step;
      step_uses_[i] += state.unit;
      stakes_[i] += stake * state.unit;
    }
  }
}

void DecayedCounts::Forecast(std::int32_t layer, absl::Span<float> probabilities) const {
  const auto l = static_cast<std::size_t>(layer);
  const double rows = layers_[l].rows;
  for (std::size_t e = 0; e < num_experts_; ++e) {
    probabilities[e] = rows > 0.0 ? static_cast<float>(row_uses_[l * num_experts_ + e] / rows) : 0.0F;
  }
}

void DecayedCounts::Restore(absl::Span<const float> step_uses) {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    Layer& state = layers_[l];
    state.unit = 1.0;
    double sum = 0.0;
    for (std::size_t i = l * num_experts_; i < (l + 1) * num_experts_; ++i) {
      step_uses_[i] = stakes_[i] = row_uses_[i] = static_cast<double>(step_uses[i]);
      sum += step_uses_[i];
    }
    state.rows = sum / static_cast<double>(experts_per_token_);
  }
}

void DecayedCounts::Rescale(std::size_t layer) {
  Layer& state = layers_[layer];
  for (std::size_t i = layer * num_experts_; i < (layer + 1) * num_experts_; ++i) {
    row_uses_[i] /= state.unit;
    step_uses_[i] /= state.unit;
    stakes_[i] /= state.unit;
  }
  state.rows /= state.unit;
  state.unit = 1.0;
}

}  // namespace comoe::routing
