#include "scheduler/routing/simple_director.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/routing/pooled_director.h"
#include "scheduler/routing/predictor.h"
#include "scheduler/routing/victim_heap.h"
#include "scheduler/routing/window_predictor.h"

namespace comoe::routing {
namespace {

// With this many layers' worth of guesses waiting for the link, new ones would only be late.
constexpr std::int32_t kLayersOfGuesses = 2;
// Worth of a pinned copy whose expert is on the device too: needed only once that is displaced.
constexpr double kCopyShare = 0.5;

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
  double PinnedValue(base::ExpertKey key) const;
  // Brings the worth of a pinned slot up to date; nothing for kNoSlot.
  void RefreshPinned(std::int32_t slot);

  const std::int32_t prefetch_per_layer_;
  const double prefetch_margin_;
  const std::int32_t promotions_per_layer_;
  const double promotion_margin_;
  WindowPredictor window_;
  std::vector<std::int32_t> next_moe_layer_;  // [num_layers + 1]; at layer + 1, the one after `layer`
  VictimHeap pinned_victims_;
  // [pinned_slots]: the turn of a layer in which a copy from or to the slot was last ordered. It may be on
  // its way still, so the slot is left alone during that turn.
  std::vector<std::uint64_t> pinned_turn_;
  std::uint64_t turn_ = 0;
  std::vector<api::FetchOrder> orders_;
  std::vector<float> probabilities_;  // scratch, [num_experts]
  std::vector<std::int32_t> likely_;  // scratch
};

SimpleDirector::SimpleDirector(const TierShape& shape, const PolicyOptions& options)
    : PooledDirector(shape, options),
      prefetch_per_layer_(options.prefetch_per_layer < 0
                              ? shape.experts_per_token
                              : std::min(options.prefetch_per_layer, shape.num_experts)),
      prefetch_margin_(options.prefetch_margin),
      promotions_per_layer_(options.promotions_per_layer),
      promotion_margin_(options.promotion_margin),
      window_(shape, options.window),
      pinned_victims_(residency().pinned().num_slots()),
      pinned_turn_(static_cast<std::size_t>(residency().pinned().num_slots()), 0),
      probabilities_(static_cast<std::size_t>(shape.num_experts)) {
  for (std::int32_t layer = -1; layer < shape.num_layers; ++layer) {
    const auto next = std::upper_bound(shape.moe_layers.begin(), shape.moe_layers.end(), layer);
    next_moe_layer_.push_back(next == shape.moe_layers.end() ? shape.moe_layers.front() : *next);
  }
  for (std::int32_t slot = 0; slot < residency().pinned().num_slots(); ++slot) {
    RefreshPinned(slot);
  }
  const auto num_experts = static_cast<std::size_t>(shape.num_experts);
  likely_.reserve(num_experts);
  orders_.reserve(2 * num_experts);
}

void SimpleDirector::BeginStep(const api::StepPlan& plan) {
  PooledDirector::BeginStep(plan);
  ++turn_;
}

void SimpleDirector::ObserveRouting(const api::RoutingObservation& observation) {
  ++turn_;
  PooledDirector::ObserveRouting(observation);
  if (residency().pinned().num_slots() > 0) {
    for (std::int32_t expert = 0; expert < shape().num_experts; ++expert) {
      RefreshPinned(residency().pinned().SlotOf({observation.layer, expert}));
    }
  }
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
  const SlotTable& pinned = residency().pinned();
  if (pinned.num_slots() == 0 || promotions_per_layer_ == 0) {
    return;
  }
  window_.Forecast(layer, absl::MakeSpan(probabilities_));
  for (std::int32_t expert = 0; expert < shape().num_experts; ++expert) {
    const base::ExpertKey key{layer, expert};
    if (residency().device().SlotOf(key) != kNoSlot || pinned.SlotOf(key) != kNoSlot) {
      probabilities_[static_cast<std::size_t>(expert)] = 0.0F;
    }
  }
  MostLikely(probabilities_, std::min(promotions_per_layer_, shape().num_experts), &likely_);
  for (const std::int32_t expert : likely_) {
    const base::ExpertKey key{layer, expert};
    std::int32_t slot = pinned.FreeSlot();
    if (slot == kNoSlot) {
      slot = pinned_victims_.Lowest([this, &pinned](std::int32_t candidate) {
        return pinned_turn_[static_cast<std::size_t>(candidate)] != turn_ &&
               !needed().Contains(*pinned.KeyIn(candidate));
      });
      if (slot == kNoSlot || pinned_victims_.worth(slot).value + promotion_margin_ > Value(key)) {
        break;
      }
    } else if (pinned_turn_[static_cast<std::size_t>(slot)] == turn_) {
      break;  // what left it is still being read
    }
    residency().PlacePinned(key, slot);
    pinned_turn_[static_cast<std::size_t>(slot)] = turn_;
    RefreshPinned(slot);
    orders_.push_back({key, base::Tier::kPinned, slot, base::CopyReason::kPrefetch});
  }
}

void SimpleDirector::Placed(base::ExpertKey key, const Residency::Moved& moved) {
  if (moved.pinned_slot != kNoSlot) {
    pinned_turn_[static_cast<std::size_t>(moved.pinned_slot)] = turn_;
    RefreshPinned(moved.pinned_slot);
  }
  RefreshPinned(residency().pinned().SlotOf(key));
  if (moved.victim.has_value()) {
    RefreshPinned(residency().pinned().SlotOf(*moved.victim));
  }
}

void SimpleDirector::OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  PooledDirector::OnVacated(tier, slot, key, usable);
  if (tier == base::Tier::kPinned && slot >= 0 && slot < residency().pinned().num_slots()) {
    RefreshPinned(slot);
  } else {
    RefreshPinned(residency().pinned().SlotOf(key));
  }
}

double SimpleDirector::PinnedValue(base::ExpertKey key) const {
  const bool copy = residency().device().SlotOf(key) != kNoSlot;
  return Value(key) * (copy ? kCopyShare : 1.0);
}

void SimpleDirector::RefreshPinned(std::int32_t slot) {
  if (slot == kNoSlot) {
    return;
  }
  const std::optional<base::ExpertKey> key = residency().pinned().KeyIn(slot);
  if (key.has_value()) {
    pinned_victims_.Set(slot, {PinnedValue(*key), 0});
  } else {
    pinned_victims_.Remove(slot);
  }
}

}  // namespace

std::unique_ptr<api::ExpertDirector> MakeSimpleDirector(const TierShape& shape,
                                                        const PolicyOptions& options) {
  return std::make_unique<SimpleDirector>(shape, options);
}

}  // namespace comoe::routing
