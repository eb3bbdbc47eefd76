// Predictors that know nothing of a row (window, decayed counts, frequency since the start), as row
// predictors: every row gets the same forecast.
#pragma once

#include <cstddef>
#include <memory>

#include "scheduler/routing/predictor.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

class SharedRowPredictor final : public RowPredictor {
 public:
  SharedRowPredictor(const TierShape& shape, std::unique_ptr<Predictor> predictor);

  absl::string_view name() const override { return predictor_->name(); }
  void BeginStep(absl::Span<const base::TokenId> tokens) override { num_rows_ = tokens.size(); }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    predictor_->Observe(layer, experts);
  }
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override;

 private:
  const std::size_t num_experts_;
  const std::unique_ptr<Predictor> predictor_;
  std::size_t num_rows_ = 0;
};

// How often each expert was used since the start: for contrast.
std::unique_ptr<Predictor> MakeGlobalFrequency(const TierShape& shape);

}  // namespace comoe::routing
