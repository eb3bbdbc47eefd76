#include "scheduler/routing/transition_counts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace comoe::routing {
namespace {

// Once an expert has been followed this often, its counts are halved: about as many rows back still matter.
constexpr float kMostTotal = 4096.0F;
constexpr float kSmoothing = 1.0F;

}  // namespace

TransitionCounts::TransitionCounts(const TierShape& shape)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(static_cast<std::size_t>(shape.experts_per_token)),
      next_(static_cast<std::size_t>(shape.num_layers), -1),
      before_(static_cast<std::size_t>(shape.num_layers), -1),
      counts_(shape.num_keys() * num_experts_, 0.0F),
      totals_(shape.num_keys(), 0.0F) {
  for (std::size_t i = 1; i < shape.moe_layers.size(); ++i) {
    next_[static_cast<std::size_t>(shape.moe_layers[i - 1])] = shape.moe_layers[i];
    before_[static_cast<std::size_t>(shape.moe_layers[i])] = shape.moe_layers[i - 1];
  }
  experts_.reserve(kMaxForecastRows * experts_per_token_);
}

void TransitionCounts::BeginStep(absl::Span<const base::TokenId> tokens) {
  num_rows_ = tokens.size();
  last_ = -1;
}

void TransitionCounts::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  const auto l = static_cast<std::size_t>(layer);
  if (last_ >= 0 && before_[l] == last_ && experts.size() == experts_.size()) {
    for (std::size_t t = 0; t < num_rows_; ++t) {
      for (std::size_t i = 0; i < experts_per_token_; ++i) {
        const std::size_t from =
            l * num_experts_ + static_cast<std::size_t>(experts_[t * experts_per_token_ + i]);
        float* row = &counts_[from * num_experts_];
        if (totals_[from] >= kMostTotal) {
          totals_[from] *= 0.5F;
          std::transform(row, row + num_experts_, row, [](float count) { return 0.5F * count; });
        }
        totals_[from] += 1.0F;
        for (std::size_t j = 0; j < experts_per_token_; ++j) {
          row[static_cast<std::size_t>(experts[t * experts_per_token_ + j])] += 1.0F;
        }
      }
    }
  }
  experts_.assign(experts.begin(), experts.end());
  last_ = layer;
}

void TransitionCounts::Forecast(std::int32_t target, absl::Span<float> probabilities) {
  std::fill(probabilities.begin(), probabilities.end(), 0.0F);
  if (!knows(target)) {
    return;
  }
  const auto l = static_cast<std::size_t>(target);
  for (std::size_t t = 0; t < num_rows_; ++t) {
    float* row = &probabilities[t * num_experts_];
    for (std::size_t i = 0; i < experts_per_token_; ++i) {
      const std::size_t from =
          l * num_experts_ + static_cast<std::size_t>(experts_[t * experts_per_token_ + i]);
      const float* counts = &counts_[from * num_experts_];
      const float scale = 1.0F / ((totals_[from] + kSmoothing) * static_cast<float>(experts_per_token_));
      for (std::size_t e = 0; e < num_experts_; ++e) {
        row[e] += counts[e] * scale;
      }
    }
  }
}

void TransitionCounts::Append(std::vector<std::uint8_t>* bytes) const {
  const std::size_t at = bytes->size();
  bytes->resize(at + counts_.size() * sizeof(float));
  std::memcpy(bytes->data() + at, counts_.data(), counts_.size() * sizeof(float));
}

bool TransitionCounts::Restore(absl::Span<const std::uint8_t>* bytes) {
  if (bytes->size() < counts_.size() * sizeof(float)) {
    return false;
  }
  std::vector<float> counts(counts_.size());
  std::memcpy(counts.data(), bytes->data(), counts.size() * sizeof(float));
  if (!std::all_of(counts.begin(), counts.end(),
                   [](float count) { return count >= 0.0F && count <= 2.0F * kMostTotal; })) {
    return false;
  }
  bytes->remove_prefix(counts.size() * sizeof(float));
  counts_ = std::move(counts);
  for (std::size_t from = 0; from < totals_.size(); ++from) {
    float sum = 0.0F;
    for (std::size_t e = 0; e < num_experts_; ++e) {
      sum += counts_[from * num_experts_ + e];
    }
    totals_[from] = sum / static_cast<float>(experts_per_token_);
  }
  return true;
}

}  // namespace comoe::routing
