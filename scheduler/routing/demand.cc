#include "scheduler/routing/demand.h"

#include <algorithm>
#include <utility>

namespace comoe::routing {
namespace {

class InlineForecaster final : public DemandForecaster {
 public:
  InlineForecaster(const TierShape& shape, std::shared_ptr<RowPredictor> predictor)
      : num_experts_(static_cast<std::size_t>(shape.num_experts)),
        predictor_(std::move(predictor)),
        probabilities_(kMaxForecastRows * num_experts_),
        hinted_(static_cast<std::size_t>(shape.num_layers), 0) {
    demand_.probability.resize(num_experts_);
    demand_.expected_rows.resize(num_experts_);
    hint_demand_ = demand_;
    hint_.reserve(kMaxForecastRows);
  }

  void BeginStep(absl::Span<const base::TokenId> tokens) override {
    num_rows_ = tokens.size();
    predictor_->BeginStep(tokens);
  }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    predictor_->Observe(layer, experts);
  }
  void ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) override {
    predictor_->ObserveLookahead(layer, target, logits);
  }
  const Demand& Forecast(std::int32_t target) override {
    const absl::Span<float> rows = absl::MakeSpan(probabilities_).first(num_rows_ * num_experts_);
    predictor_->Forecast(target, rows);
    CombineRows(rows, num_experts_, &demand_);
    return demand_;
  }
  void Hint(absl::Span<const base::TokenId> tokens) override {
    hint_.assign(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(
                                                      tokens.size(), kMaxForecastRows)));
    std::fill(hinted_.begin(), hinted_.end(), std::uint8_t{1});
  }
  const Demand* TakeHint(std::int32_t layer) override {
    std::uint8_t& hinted = hinted_[static_cast<std::size_t>(layer)];
    if (hinted == 0) {
      return nullptr;
    }
    hinted = 0;
    const absl::Span<float> rows = absl::MakeSpan(probabilities_).first(hint_.size() * num_experts_);
    predictor_->ForecastTokens(hint_, layer, rows);
    CombineRows(rows, num_experts_, &hint_demand_);
    return &hint_demand_;
  }
  std::uint64_t num_late() const override { return 0; }
  std::uint64_t num_dropped() const override { return 0; }
  bool on_own_thread() const override { return false; }
  void Append(std::vector<std::uint8_t>* bytes) override { predictor_->Append(bytes); }
  bool Restore(absl::Span<const std::uint8_t>* bytes) override { return predictor_->Restore(bytes); }

 private:
  const std::size_t num_experts_;
  const std::shared_ptr<RowPredictor> predictor_;
  std::vector<float> probabilities_;  // [kMaxForecastRows, E]
  Demand demand_;
  Demand hint_demand_;
  std::vector<base::TokenId> hint_;
  std::vector<std::uint8_t> hinted_;  // [num_layers]: 1: the hint was not used for it yet
  std::size_t num_rows_ = 0;
};

}  // namespace

void CombineRows(absl::Span<const float> probabilities, std::size_t num_experts, Demand* demand) {
  float* none = demand->probability.data();
  float* rows = demand->expected_rows.data();
  std::fill_n(none, num_experts, 1.0F);
  std::fill_n(rows, num_experts, 0.0F);
  for (std::size_t at = 0; at < probabilities.size(); at += num_experts) {
    const float* row = &probabilities[at];
    for (std::size_t e = 0; e < num_experts; ++e) {
      none[e] *= 1.0F - row[e];
      rows[e] += row[e];
    }
  }
  for (std::size_t e = 0; e < num_experts; ++e) {
    none[e] = 1.0F - none[e];
  }
}

std::unique_ptr<DemandForecaster> MakeInlineForecaster(const TierShape& shape,
                                                       std::shared_ptr<RowPredictor> predictor) {
  return std::make_unique<InlineForecaster>(shape, std::move(predictor));
}

}  // namespace comoe::routing
