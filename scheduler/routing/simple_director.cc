#include "scheduler/routing/simple_director.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/routing/pinned_promoter.h"
#include "scheduler/routing/pooled_director.h"
#include "scheduler/routing/predictor.h"
#include "scheduler/routing/window_predictor.h"

namespace comoe::routing {
namespace {

// With this many layers' worth of guesses waiting for the link, new ones would only be late.
constexpr std::int32_t kLayersOfGuesses = 2;

class SimpleDirector final : public PooledDirector {
 public:
  SimpleDirector(const TierShape& shape, const PolicyOptions& options);

  absl::string_view policy() const override { return "simple"; }
  void BeginStep(const api::StepPlan& plan) override;
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override;
  void ObserveRouting(const api::RoutingObservation& observation) override;
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override;

 protected:
  double Value(base::ExpertKey key) const override {
    return window_.counts(key.layer)[static_cast<std::size_t>(key.expert)];
  }
  void Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) override {
    window_.Observe(layer, experts);
  }
  void Placed(base::ExpertKey key, const Residency::Moved& moved) override;

 private:
  void Prefetch(std::int32_t layer, std::int32_t num_queued);
  void Promote(std::int32_t layer);

  const std::int32_t prefetch_per_layer_;
  const double prefetch_margin_;
  const std::int32_t promotions_per_layer_;
  WindowPredictor window_;
  std::vector<std::int32_t> next_moe_layer_;  // [num_layers + 1]; at layer + 1, the one after `layer`
  PinnedPromoter promoter_;
  std::vector<api::FetchOrder> orders_;
  std::vector<float> probabilities_;     // scratch, [num_experts]
  std::vector<std::int32_t> likely_;     // scratch
  std::vector<base::ExpertKey> rising_;  // scratch
};

SimpleDirector::SimpleDirector(const TierShape& shape, const PolicyOptions& options)
    : PooledDirector(shape, options),
      prefetch_per_layer_(options.prefetch_per_layer < 0
                              ? shape.experts_per_token
                              : std::min(options.prefetch_per_layer, shape.num_experts)),
      prefetch_margin_(options.prefetch_margin),
      promotions_per_layer_(options.promotions_per_layer),
      window_(shape, options.window),
      promoter_(&residency(), options.promotion_margin),
      probabilities_(static_cast<std::size_t>(shape.num_experts)) {
  for (std::int32_t layer = -1; layer < shape.num_layers; ++layer) {
    const auto next = std::upper_bound(shape.moe_layers.begin(), shape.moe_layers.end(), layer);
    next_moe_layer_.push_back(next == shape.moe_layers.end() ? shape.moe_layers.front() : *next);
  }
  promoter_.RefreshAll([this](base::ExpertKey key) { return Value(key); });
  const auto num_experts = static_cast<std::size_t>(shape.num_experts);
  likely_.reserve(num_experts);
  rising_.reserve(num_experts);
  orders_.reserve(2 * num_experts);
}

void SimpleDirector::BeginStep(const api::StepPlan& plan) {
  PooledDirector::BeginStep(plan);
  promoter_.Advance();
}

void SimpleDirector::ObserveRouting(const api::RoutingObservation& observation) {
  promoter_.Advance();
  PooledDirector::ObserveRouting(observation);
  promoter_.RefreshLayer(observation.layer, shape().num_experts,
                         [this](base::ExpertKey key) { return Value(key); });
}

absl::Span<const api::FetchOrder> SimpleDirector::Orders(std::int32_t layer, const api::LaneState& lanes) {
  orders_.clear();
  EnterLayer(layer);
  Prefetch(next_moe_layer_[static_cast<std::size_t>(layer + 1)], lanes.queued_guesses);
  if (layer >= 0) {
    Promote(layer);
  }
  return orders_;
}

void SimpleDirector::Prefetch(std::int32_t layer, std::int32_t num_queued) {
  std::int32_t num_left = std::min(prefetch_per_layer_, kLayersOfGuesses * prefetch_per_layer_ - num_queued);
  if (num_left <= 0) {
    return;
  }
  window_.Forecast(layer, absl::MakeSpan(probabilities_));
  MostLikely(probabilities_, 2 * shape().experts_per_token, &likely_);
  for (const std::int32_t expert : likely_) {
    const base::ExpertKey key{layer, expert};
    if (num_left == 0) {
      break;
    }
    if (residency().device().SlotOf(key) != kNoSlot || needed().Contains(key)) {
      continue;
    }
    // The margin also keeps a guess of this call from taking the slot of an earlier, likelier one.
    const std::int32_t slot = SlotFor(Value(key) - prefetch_margin_);
    if (slot == kNoSlot) {
      break;  // the others are less likely
    }
    orders_.push_back({key, base::Tier::kDevice, slot, base::CopyReason::kPrefetch});
    Place(key, slot);
    --num_left;
  }
}

void SimpleDirector::Promote(std::int32_t layer) {
  if (residency().pinned().num_slots() == 0 || promotions_per_layer_ == 0) {
    return;
  }
  window_.Forecast(layer, absl::MakeSpan(probabilities_));
  for (std::int32_t expert = 0; expert < shape().num_experts; ++expert) {
    const base::ExpertKey key{layer, expert};
    if (residency().device().SlotOf(key) != kNoSlot || residency().pinned().SlotOf(key) != kNoSlot) {
      probabilities_[static_cast<std::size_t>(expert)] = 0.0F;
    }
  }
  MostLikely(probabilities_, std::min(promotions_per_layer_, shape().num_experts), &likely_);
  rising_.clear();
  for (const std::int32_t expert : likely_) {
    rising_.push_back({layer, expert});
  }
  promoter_.Promote(
      rising_, promotions_per_layer_, needed(), [this](base::ExpertKey key) { return Value(key); }, &orders_);
}

void SimpleDirector::Placed(base::ExpertKey key, const Residency::Moved& moved) {
  promoter_.Placed(key, moved, [this](base::ExpertKey other) { return Value(other); });
}

void SimpleDirector::OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  PooledDirector::OnVacated(tier, slot, key, usable);
  promoter_.Vacated(tier, slot, key, [this](base::ExpertKey other) { return Value(other); });
}

}  // namespace

std::unique_ptr<api::ExpertDirector> MakeSimpleDirector(const TierShape& shape,
                                                        const PolicyOptions& options) {
  return std::make_unique<SimpleDirector>(shape, options);
}

}  // namespace comoe::routing
