// A small learned predictor: logistic regression from a row's token, the window, and the experts of the two
// layers before and of the row before. Fitted once over a trace, frozen afterwards (`comoe trace fit`).
//
// For each MoE layer and distance ahead, and each expert e:
//   logit(e) = bias[e] + a * log p(e | token) + b * log p(e | window)
//            + sum of A[x, e] over the experts x of the latest layer known, B[x, e] over those of the layer
//              before that, C[x, e] over those that the row in the same place used in this layer a step ago.
// p(e | token) are counts of the trace, pulled towards the layer's frequencies where a token was rare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"
#include "scheduler/routing/window_predictor.h"

namespace comoe::routing {

struct FitOptions {
  std::int32_t distances = 3;   // forecasts 1, 2, ... layers ahead
  std::int32_t passes = 4;      // over the steps
  double learning_rate = 0.05;  // of Adagrad
  double decay = 1e-6;          // of weights, a lesson
  std::int32_t rare = 3;        // tokens seen less often than this have no counts
};

class ExpertClassifier final : public RowPredictor {
 public:
  // Learns from one row a step. RESOURCE_EXHAUSTED for models whose tables would be larger than
  // kMaxTableBytes. `progress` gets steps done and in all.
  static absl::StatusOr<std::unique_ptr<ExpertClassifier>> Fit(
      const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps, const FitOptions& options,
      const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);
  // INVALID_ARGUMENT: no such file, another version, or of another model; DATA_LOSS: damaged.
  static absl::StatusOr<std::unique_ptr<ExpertClassifier>> Parse(const std::string& bytes,
                                                                 const std::string& name,
                                                                 const TierShape& shape);
  std::string Encode() const;

  absl::string_view name() const override { return "classifier"; }
  void BeginStep(absl::Span<const base::TokenId> tokens) override;
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override;

  static constexpr std::uint64_t kMaxTableBytes = std::uint64_t{256} << 20;

 private:
  // Of one layer and distance, in one array: A, B, C [E, E] each, bias [E], a, b.
  struct Weights {
    std::vector<float> values;
    std::vector<float> squares;  // sums of squared gradients; empty once fitted
  };

  ExpertClassifier(const TierShape& shape, std::int32_t distances);
  absl::Status CheckSize(std::size_t num_tokens) const;
  Weights& WeightsOf(std::size_t index, std::size_t distance) {
    return weights_[index * static_cast<std::size_t>(distances_) + distance - 1];
  }
  void CountTokens(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps, std::int32_t rare);
  // What is known of row t for layer number `index`, `distance` ahead; `own`: experts [k] to be left out of
  // the counts, since they are this row's own.
  void Gather(std::size_t t, std::size_t index, std::size_t distance, absl::Span<const std::int32_t> own);
  void Score(const Weights& weights);
  void Learn(std::size_t index, std::size_t distance, absl::Span<const std::int32_t> experts,
             const FitOptions& options);

  const TierShape shape_;
  const std::int32_t distances_;
  const std::size_t num_experts_;
  const std::size_t k_;
  std::vector<std::int32_t> index_;  // [num_layers]: among the MoE layers; -1: dense
  std::vector<Weights> weights_;     // [MoE layers, distances]
  std::vector<float> frequency_;     // [MoE layers, E]: sums to k
  absl::flat_hash_map<base::TokenId, std::uint32_t> place_of_;
  std::vector<base::TokenId> tokens_of_;  // [places]
  std::vector<std::uint16_t> counts_;     // [places, MoE layers, E]
  std::vector<std::uint32_t> seen_;       // [places]
  WindowPredictor window_;

  std::vector<base::TokenId> tokens_;  // of the step
  std::vector<std::int32_t> now_;  // [MoE layers, kMaxForecastRows, k]: of this step so far, then of the last
  std::size_t num_rows_ = 0;
  std::size_t num_rows_before_ = 0;
  std::int32_t last_index_ = -1;  // the latest layer observed in this step
  // Gathered:
  std::vector<std::size_t> rows_of_weights_;  // where rows [E] begin that count
  std::vector<float> token_log_;              // [E]
  std::vector<float> window_log_;             // [E]
  std::vector<float> logits_;                 // [E]
  std::vector<float> window_share_;           // scratch
};

}  // namespace comoe::routing
