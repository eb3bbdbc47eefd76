#include "scheduler/routing/gate_lookahead.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduler/routing/fast_math.h"

namespace comoe::routing {
namespace {

// Margins beyond this many logits on either side share the outermost bins.
constexpr float kRange = 5.0F;
// A curve is drawn anew after each of the first lessons, then after every sixteenth.
constexpr std::uint32_t kFirstLessons = 16;
// Rows that a lesson takes into account; which ones rotates.
constexpr std::size_t kRowsPerLesson = 4;
constexpr float kMostTrials = 1e6F;
// What is believed before anything was seen: a logistic curve of the margin, worth so many trials a bin.
constexpr float kPriorSlope = 1.5F;
constexpr float kPriorTrials = 8.0F;

}  // namespace

GateLookahead::GateLookahead(const TierShape& shape)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(static_cast<std::size_t>(shape.experts_per_token)),
      index_(static_cast<std::size_t>(shape.num_layers), -1),
      distance_(static_cast<std::size_t>(shape.num_layers), 0),
      seen_(static_cast<std::size_t>(shape.num_layers), 0),
      positions_((kMaxLookAhead + 1) * std::size_t{kMaxForecastRows} * num_experts_ * kMaxLookAhead),
      curves_(static_cast<std::size_t>(shape.num_layers) * kMaxLookAhead),
      best_(experts_per_token_ + 1),
      needed_(num_experts_) {
  for (std::size_t i = 0; i < shape.moe_layers.size(); ++i) {
    index_[static_cast<std::size_t>(shape.moe_layers[i])] = static_cast<std::int32_t>(i);
  }
  for (Curve& curve : curves_) {
    for (std::int32_t bin = 0; bin < kBins; ++bin) {
      const float margin =
          kRange * (2.0F * (static_cast<float>(bin) + 0.5F) / static_cast<float>(kBins) - 1.0F);
      curve.trials[static_cast<std::size_t>(bin)] = kPriorTrials;
      curve.hits[static_cast<std::size_t>(bin)] = kPriorTrials * FastSigmoid(kPriorSlope * margin);
    }
    Refresh(&curve);
  }
}

void GateLookahead::BeginStep(absl::Span<const base::TokenId> tokens) {
  num_rows_ = tokens.size();
  std::fill(distance_.begin(), distance_.end(), 0);
  std::fill(seen_.begin(), seen_.end(), 0U);
}

// Targets within reach of each other never share a place: a ring over layers, for each distance.
std::size_t GateLookahead::ScoresOf(std::int32_t layer, std::int32_t distance) const {
  const auto ring = static_cast<std::size_t>(index_[static_cast<std::size_t>(layer)]) % (kMaxLookAhead + 1);
  return (ring * kMaxLookAhead + static_cast<std::size_t>(distance - 1)) *
         static_cast<std::size_t>(kMaxForecastRows) * num_experts_;
}

// Halfway between the k-th and the next score.
float GateLookahead::Threshold(const float* row) {
  std::fill(best_.begin(), best_.end(), -std::numeric_limits<float>::infinity());
  const std::size_t last = experts_per_token_;
  for (std::size_t e = 0; e < num_experts_; ++e) {
    if (row[e] > best_[last]) {
      std::size_t i = last;
      for (; i > 0 && best_[i - 1] < row[e]; --i) {
        best_[i] = best_[i - 1];
      }
      best_[i] = row[e];
    }
  }
  return num_experts_ > experts_per_token_ ? 0.5F * (best_[last] + best_[last - 1]) : best_[last - 1] - 1.0F;
}

void GateLookahead::ObserveLookahead(std::int32_t layer, std::int32_t target,
                                     absl::Span<const float> logits) {
  const std::int32_t distance =
      index_[static_cast<std::size_t>(target)] - index_[static_cast<std::size_t>(layer)];
  if (distance < 1 || distance > kMaxLookAhead) {
    return;
  }
  distance_[static_cast<std::size_t>(target)] = distance;
  seen_[static_cast<std::size_t>(target)] |= 1U << (distance - 1);
  float* positions = &positions_[ScoresOf(target, distance)];
  constexpr float kScale = static_cast<float>(kBins) / (2.0F * kRange);
  constexpr float kLast = static_cast<float>(kBins) - 1.001F;
  for (std::size_t t = 0; t < num_rows_; ++t) {
    const float* row = &logits[t * num_experts_];
    const float threshold = Threshold(row);
    float* out = positions + t * num_experts_;
    for (std::size_t e = 0; e < num_experts_; ++e) {
      // In bins, measured from the first one's centre. Written so that NaN becomes 0.
      const float position = (row[e] - threshold + kRange) * kScale - 0.5F;
      out[e] = position > 0.0F ? (position < kLast ? position : kLast) : 0.0F;
    }
  }
}

void GateLookahead::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  for (std::int32_t distance = 1; distance <= kMaxLookAhead; ++distance) {
    if ((seen_[static_cast<std::size_t>(layer)] >> (distance - 1) & 1U) == 0) {
      continue;
    }
    Curve& curve = CurveOf(layer, distance);
    const float* positions = &positions_[ScoresOf(layer, distance)];
    const std::size_t num_taken = std::min(num_rows_, kRowsPerLesson);
    for (std::size_t n = 0; n < num_taken; ++n) {
      const std::size_t t = (static_cast<std::size_t>(curve.lessons) + n) % num_rows_;
      const float* row = positions + t * num_experts_;
      for (std::size_t e = 0; e < num_experts_; ++e) {
        curve.trials[static_cast<std::size_t>(row[e] + 0.5F)] += 1.0F;
      }
      for (std::size_t i = 0; i < experts_per_token_; ++i) {
        const auto e = static_cast<std::size_t>(experts[t * experts_per_token_ + i]);
        curve.hits[static_cast<std::size_t>(row[e] + 0.5F)] += 1.0F;
      }
    }
    ++curve.lessons;
    if (curve.lessons < kFirstLessons || curve.lessons % kFirstLessons == 0) {
      Refresh(&curve);
    }
  }
}

void GateLookahead::Refresh(Curve* curve) {
  float most = 0.0F;
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    most = std::max(most, curve->trials[bin]);
    curve->logit[bin] = FastLogit(curve->hits[bin] / curve->trials[bin], 1e-4F);
    // More margin never means less: scarce outer bins lean on their neighbours.
    if (bin > 0) {
      curve->logit[bin] = std::max(curve->logit[bin], curve->logit[bin - 1]);
    }
  }
  curve->logit[kBins] = curve->logit[kBins - 1];
  if (most > kMostTrials) {
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      curve->hits[bin] *= 0.5F;
      curve->trials[bin] *= 0.5F;
    }
  }
}

void GateLookahead::ForecastLogits(std::int32_t target, absl::Span<float> logits) {
  const std::int32_t distance = distance_[static_cast<std::size_t>(target)];
  const Curve& curve = CurveOf(target, distance);
  const float* positions = &positions_[ScoresOf(target, distance)];
  const std::size_t size = num_rows_ * num_experts_;
  for (std::size_t i = 0; i < size; ++i) {
    const auto bin = static_cast<std::size_t>(positions[i]);
    const float part = positions[i] - static_cast<float>(bin);
    logits[i] = curve.logit[bin] + part * (curve.logit[bin + 1] - curve.logit[bin]);
  }
}

void GateLookahead::Forecast(std::int32_t target, absl::Span<float> probabilities) {
  if (distance(target) == 0) {
    std::fill(probabilities.begin(), probabilities.end(), 0.0F);
    return;
  }
  ForecastLogits(target, probabilities);
  const std::size_t size = num_rows_ * num_experts_;
  for (std::size_t i = 0; i < size; ++i) {
    probabilities[i] = FastSigmoid(probabilities[i]);
  }
}

}  // namespace comoe::routing
