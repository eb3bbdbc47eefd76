// All that is known of a row, weighed by how well it has served: the hub's predictor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/gate_lookahead.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"
#include "scheduler/routing/token_counts.h"
#include "scheduler/routing/transition_counts.h"

namespace comoe::routing {

struct MixOptions {
  std::uint64_t token_table_bytes = std::uint64_t{16} << 20;
  double decay = 0.97;
  // Steps from one lesson of the weights to the next; the parts learn from every step.
  std::int32_t interval = 1;
};

// Log-odds of routers applied early, of token-conditioned counts, of decayed counts and of transitions are
// added up with weights that a logistic regression learns while it goes: one set of weights for each layer
// and for each kind of evidence at hand (scores of which distance; the layer before known or not). Sums only,
// in fixed order: the same observations give the same forecasts.
class MixPredictor final : public RowPredictor {
 public:
  MixPredictor(const TierShape& shape, const MixOptions& options);

  absl::string_view name() const override { return "mix"; }
  void BeginStep(absl::Span<const base::TokenId> tokens) override;
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) override;
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override;

  void ForecastTokens(absl::Span<const base::TokenId> tokens, std::int32_t target,
                      absl::Span<float> probabilities) const override {
    tokens_.ForecastTokens(tokens, target, probabilities);
  }
  void Append(std::vector<std::uint8_t>* bytes) const override;
  bool Restore(absl::Span<const std::uint8_t>* bytes) override;

 private:
  enum Evidence : std::size_t { kLook, kToken, kDecayed, kTransition, kNumEvidence };
  static constexpr std::size_t kNumWeights = kNumEvidence + 1;  // and a constant
  // Forecasts this far ahead are learnt from; those further ahead are weighed like them.
  static constexpr std::size_t kLearntAhead = 3;
  // By distance of the scores at hand, 0 for none, and whether the layer before is known.
  static constexpr std::size_t kNumSets = (kLearntAhead + 1) * 2;
  // One for each forecast whose truth is to come: d for distance d. The last is for those further ahead.
  static constexpr std::size_t kNumPending = kLearntAhead * (kLearntAhead + 1) / 2 + 1;

  struct Weights {
    std::array<float, kNumWeights> w{};
    std::array<float, kNumWeights> squares{};  // sums of squared gradients
  };
  // A forecast whose truth is to come.
  struct Pending {
    std::int32_t target = -1;
    std::size_t set = 0;
    std::vector<float> evidence;  // [kNumEvidence, T, E]
    std::vector<float> forecast;  // [T, E]
  };

  Weights& WeightsOf(std::int32_t layer, std::size_t set) {
    return weights_[static_cast<std::size_t>(layer) * kNumSets + set];
  }
  float* EvidenceOf(Pending& pending, Evidence which) const {
    return &pending.evidence[which * std::size_t{kMaxForecastRows} * num_experts_];
  }
  Pending& PendingFor(std::int32_t target);
  void Gather(std::int32_t target, Pending* pending);
  void Learn(const Pending& pending, absl::Span<const std::int32_t> experts);

  const std::size_t num_experts_;
  const std::size_t experts_per_token_;
  const std::int32_t interval_;
  std::vector<std::int32_t> index_;  // [num_layers]: among the MoE layers
  TokenCounts tokens_;
  DecayedCounts decayed_;
  TransitionCounts transitions_;
  GateLookahead lookahead_;
  std::vector<Weights> weights_;  // [num_layers, kNumSets]
  std::vector<Pending> pending_;  // [kNumPending]
  std::vector<float> errors_;     // scratch, [E]
  std::size_t num_rows_ = 0;
  std::int32_t last_index_ = -1;  // of the latest layer observed in this step
  std::uint64_t num_steps_ = 0;
  std::uint64_t num_lessons_ = 0;
};

}  // namespace comoe::routing
