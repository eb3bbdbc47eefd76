#include "scheduler/routing/shared_row_predictor.h"

#include <algorithm>
#include <utility>

#include "scheduler/routing/decayed_counts.h"

namespace comoe::routing {
namespace {

class GlobalFrequency final : public Predictor {
 public:
  explicit GlobalFrequency(const TierShape& shape) : counts_(shape, 1.0) {}
  absl::string_view name() const override { return "global"; }
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    counts_.Observe(layer, experts);
  }
  void Forecast(std::int32_t layer, absl::Span<float> probabilities) const override {
    counts_.Forecast(layer, probabilities);
  }

 private:
  DecayedCounts counts_;
};

}  // namespace

SharedRowPredictor::SharedRowPredictor(const TierShape& shape, std::unique_ptr<Predictor> predictor)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)), predictor_(std::move(predictor)) {}

void SharedRowPredictor::Forecast(std::int32_t target, absl::Span<float> probabilities) {
  if (num_rows_ == 0) {
    return;
  }
  const absl::Span<float> first = probabilities.first(num_experts_);
  predictor_->Forecast(target, first);
  for (std::size_t t = 1; t < num_rows_; ++t) {
    std::copy(first.begin(), first.end(),
              probabilities.begin() + static_cast<std::ptrdiff_t>(t * num_experts_));
  }
}

std::unique_ptr<Predictor> MakeGlobalFrequency(const TierShape& shape) {
  return std::make_unique<GlobalFrequency>(shape);
}

}  // namespace comoe::routing
