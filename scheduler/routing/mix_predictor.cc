#include "scheduler/routing/mix_predictor.h"

#include <algorithm>
#include <cmath>

#include "scheduler/routing/fast_math.h"

namespace comoe::routing {
namespace {

// Rows that one lesson takes into account; which ones rotates.
constexpr std::size_t kRowsPerLesson = 4;
// Of Adagrad: a weight moves by at most this much at a lesson, less the more it has been taught.
constexpr float kRate = 0.05F;
constexpr float kFirstSquares = 4.0F;

// What a regression over the study's first half settles at, roughly: where learning starts.
constexpr std::array<float, 5> kWithScores = {0.95F, 0.35F, 0.1F, 0.1F, 1.2F};
constexpr std::array<float, 5> kWithoutScores = {0.0F, 0.8F, 0.3F, 0.2F, 0.5F};

}  // namespace

MixPredictor::MixPredictor(const TierShape& shape, const MixOptions& options)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(static_cast<std::size_t>(shape.experts_per_token)),
      interval_(std::max(options.interval, 1)),
      index_(static_cast<std::size_t>(shape.num_layers), -1),
      tokens_(shape, options.token_table_bytes),
      decayed_(shape, options.decay),
      transitions_(shape),
      lookahead_(shape),
      weights_(static_cast<std::size_t>(shape.num_layers) * kNumSets),
      pending_(kNumPending),
      errors_(num_experts_) {
  for (std::size_t i = 0; i < shape.moe_layers.size(); ++i) {
    index_[static_cast<std::size_t>(shape.moe_layers[i])] = static_cast<std::int32_t>(i);
  }
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    weights_[i].w = i % kNumSets >= 2 ? kWithScores : kWithoutScores;
    weights_[i].squares.fill(kFirstSquares);
  }
  const std::size_t size = kMaxForecastRows * num_experts_;
  for (Pending& pending : pending_) {
    pending.evidence.resize(kNumEvidence * size);
    pending.forecast.resize(size);
  }
}

void MixPredictor::BeginStep(absl::Span<const base::TokenId> tokens) {
  num_rows_ = tokens.size();
  last_index_ = -1;
  ++num_steps_;
  tokens_.BeginStep(tokens);
  transitions_.BeginStep(tokens);
  lookahead_.BeginStep(tokens);
  for (Pending& pending : pending_) {
    pending.target = -1;
  }
}

void MixPredictor::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  for (Pending& pending : pending_) {
    if (pending.target == layer) {
      if (&pending != &pending_.back() && num_steps_ % static_cast<std::uint64_t>(interval_) == 0) {
        Learn(pending, experts);
      }
      pending.target = -1;
    }
  }
  tokens_.Observe(layer, experts);
  decayed_.Observe(layer, experts);
  transitions_.Observe(layer, experts);
  lookahead_.Observe(layer, experts);
  last_index_ = index_[static_cast<std::size_t>(layer)];
}

void MixPredictor::ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) {
  lookahead_.ObserveLookahead(layer, target, logits);
}

MixPredictor::Pending& MixPredictor::PendingFor(std::int32_t target) {
  const std::int32_t at = index_[static_cast<std::size_t>(target)];
  const auto ahead = static_cast<std::size_t>(std::max(at - last_index_, 1));
  if (ahead > kLearntAhead) {
    return pending_.back();
  }
  return pending_[ahead * (ahead - 1) / 2 + static_cast<std::size_t>(at) % ahead];
}

void MixPredictor::Gather(std::int32_t target, Pending* pending) {
  const std::size_t size = num_rows_ * num_experts_;
  const std::int32_t distance = lookahead_.distance(target);
  const bool transition = transitions_.knows(target);
  const auto earlier = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& other) {
    return other.target == target && &other != pending;
  });
  pending->target = target;
  pending->set = std::min(static_cast<std::size_t>(distance), kLearntAhead) * 2 + (transition ? 1 : 0);

  float* look = EvidenceOf(*pending, kLook);
  if (distance > 0) {
    lookahead_.ForecastLogits(target, absl::MakeSpan(look, size));
  } else {
    std::fill_n(look, size, 0.0F);
  }
  float* token = EvidenceOf(*pending, kToken);
  float* moves = EvidenceOf(*pending, kTransition);
  if (transition) {
    transitions_.Forecast(target, absl::MakeSpan(moves, size));
  } else {
    std::fill_n(moves, size, 0.0F);
  }
  float* decayed = EvidenceOf(*pending, kDecayed);
  if (earlier != pending_.end()) {  // neither has changed since this layer was forecast from further away
    std::copy_n(EvidenceOf(*earlier, kToken), size, token);
    std::copy_n(EvidenceOf(*earlier, kDecayed), size, decayed);
  } else {
    tokens_.Forecast(target, absl::MakeSpan(token, size));
    decayed_.Forecast(target, absl::MakeSpan(decayed, num_experts_));
    for (std::size_t e = 0; e < num_experts_; ++e) {
      decayed[e] = FastLogit(decayed[e], 3e-3F);
    }
    for (std::size_t t = 1; t < num_rows_; ++t) {
      std::copy_n(decayed, num_experts_, decayed + t * num_experts_);
    }
    for (std::size_t i = 0; i < size; ++i) {
      token[i] = FastLogit(token[i], 3e-3F);
    }
  }
  if (transition) {
    for (std::size_t i = 0; i < size; ++i) {
      moves[i] = FastLogit(moves[i], 3e-3F);
    }
  }
}

void MixPredictor::Forecast(std::int32_t target, absl::Span<float> probabilities) {
  Pending& pending = PendingFor(target);
  Gather(target, &pending);
  const Weights& weights = WeightsOf(target, pending.set);
  const float* look = EvidenceOf(pending, kLook);
  const float* token = EvidenceOf(pending, kToken);
  const float* decayed = EvidenceOf(pending, kDecayed);
  const float* moves = EvidenceOf(pending, kTransition);
  float* forecast = pending.forecast.data();
  const std::array<float, kNumWeights> w = weights.w;
  const std::size_t size = num_rows_ * num_experts_;
  for (std::size_t i = 0; i < size; ++i) {
    const float z = w[kNumEvidence] + w[kLook] * look[i] + w[kToken] * token[i] + w[kDecayed] * decayed[i] +
                    w[kTransition] * moves[i];
    forecast[i] = FastSigmoid(z);
  }
  std::copy_n(forecast, size, probabilities.begin());
}

void MixPredictor::Learn(const Pending& pending, absl::Span<const std::int32_t> experts) {
  std::array<float, kNumWeights> gradient{};
  const std::size_t num_taken = std::min(num_rows_, kRowsPerLesson);
  const std::size_t first = num_rows_ > num_taken ? static_cast<std::size_t>(num_lessons_) % num_rows_ : 0;
  ++num_lessons_;
  for (std::size_t n = 0; n < num_taken; ++n) {
    const std::size_t t = (first + n) % num_rows_;
    const std::size_t at = t * num_experts_;
    std::copy_n(pending.forecast.begin() + static_cast<std::ptrdiff_t>(at), num_experts_, errors_.begin());
    for (std::size_t i = 0; i < experts_per_token_; ++i) {
      errors_[static_cast<std::size_t>(experts[t * experts_per_token_ + i])] -= 1.0F;
    }
    for (std::size_t which = 0; which < kNumEvidence; ++which) {
      const float* evidence = &pending.evidence[which * std::size_t{kMaxForecastRows} * num_experts_ + at];
      float sum = 0.0F;
      for (std::size_t e = 0; e < num_experts_; ++e) {
        sum += errors_[e] * evidence[e];
      }
      gradient[which] += sum;
    }
    for (std::size_t e = 0; e < num_experts_; ++e) {
      gradient[kNumEvidence] += errors_[e];
    }
  }
  Weights& weights = WeightsOf(pending.target, pending.set);
  for (std::size_t i = 0; i < kNumWeights; ++i) {
    const float g = gradient[i] / static_cast<float>(num_taken);
    weights.squares[i] += g * g;
    weights.w[i] -= kRate * g / std::sqrt(weights.squares[i]);
  }
}

void MixPredictor::Append(std::vector<std::uint8_t>* bytes) const {
  tokens_.Append(bytes);
  transitions_.Append(bytes);
}

bool MixPredictor::Restore(absl::Span<const std::uint8_t>* bytes) {
  return tokens_.Restore(bytes) && transitions_.Restore(bytes);
}

}  // namespace comoe::routing
