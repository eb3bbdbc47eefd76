#include "scheduler/routing/pooled_director.h"

#include <algorithm>

#include "scheduler/routing/initial_fill.h"

namespace comoe::routing {

PooledDirector::PooledDirector(const TierShape& shape, const PolicyOptions& options)
    : shape_(shape),
      residency_(shape),
      victims_(shape.device_slots),
      rows_(options.window),
      needed_(shape.num_experts),
      planner_(options.host_lane, shape.num_experts),
      last_use_(shape.num_keys(), 0) {
  values_.reserve(static_cast<std::size_t>(shape.num_experts));
  order_.reserve(static_cast<std::size_t>(shape.num_experts));
  for (const base::ExpertKey key : KeysByHotness(shape, options.hot_counts)) {
    if (residency_.pinned().FreeSlot() == kNoSlot) {
      break;
    }
    residency_.PlacePinned(key, residency_.pinned().FreeSlot());
  }
}

std::vector<api::FetchOrder> PooledDirector::InitialOrders() {
  // With a slot for every expert nothing will ever be decided; so all are there from the start.
  if (shape_.device_slots >= shape_.num_moe_experts()) {
    for (const base::ExpertKey key : KeysByHotness(shape_, {})) {
      if (residency_.device().SlotOf(key) == kNoSlot) {
        Place(key, residency_.device().FreeSlot());
      }
    }
  }
  std::vector<api::FetchOrder> orders;
  AppendWarmupOrders(residency_.device(), base::Tier::kDevice, &orders);
  AppendWarmupOrders(residency_.pinned(), base::Tier::kPinned, &orders);
  return orders;
}

void PooledDirector::BeginStep(const api::StepPlan& plan) {
  rows_.BeginStep(plan);
  needed_.Begin(-1);
}

void PooledDirector::EnterLayer(std::int32_t layer) {
  if (needed_.layer() != layer) {
    needed_.Begin(layer);
    if (layer >= 0) {
      needed_.MarkAll();
    }
  }
}

void PooledDirector::ObserveRouting(const api::RoutingObservation& observation) {
  const std::int32_t layer = observation.layer;
  const auto k = static_cast<std::size_t>(observation.experts_per_token);
  if (layer > needed_.layer()) {
    needed_.Begin(layer);
    for (std::size_t i = 0; i < observation.experts.size(); ++i) {
      needed_.Mark(observation.experts[i], rows_.is_decode(i / k));
    }
  }
  const absl::Span<const std::int32_t> learnable = rows_.Learnable(observation);
  if (learnable.empty()) {
    return;
  }
  for (const std::int32_t expert : learnable) {
    last_use_[shape_.Index({layer, expert})] = ++clock_;
  }
  Learn(layer, learnable);
  for (std::int32_t expert = 0; expert < shape_.num_experts; ++expert) {
    const base::ExpertKey key{layer, expert};
    const std::int32_t slot = residency_.device().SlotOf(key);
    if (slot != kNoSlot) {
      victims_.Set(slot, WorthOf(key));
    }
  }
}

void PooledDirector::DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                                  const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) {
  EnterLayer(layer);
  values_.clear();
  for (const api::ExpertDemand& miss : misses) {
    values_.push_back(Value(miss.key));
  }
  PlanMisses(layer, misses, values_, lanes, decisions);

  // The most valuable choose first; what only prefill rows need takes what is left free.
  order_.clear();
  for (std::size_t i = 0; i < misses.size(); ++i) {
    // Asked about an expert that the slot map names (there should be no such miss): let it pass by.
    const bool on_device = residency_.device().SlotOf(misses[i].key) != kNoSlot;
    if (decisions[i].serving == api::ServingDecision::kFetch && !on_device) {
      order_.push_back(static_cast<std::int32_t>(i));
    }
  }
  std::sort(order_.begin(), order_.end(), [this, misses](std::int32_t a, std::int32_t b) {
    const auto i = static_cast<std::size_t>(a);
    const auto j = static_cast<std::size_t>(b);
    const bool decode = needed_.ByDecode(misses[i].key);
    if (decode != needed_.ByDecode(misses[j].key)) {
      return decode;
    }
    return values_[i] > values_[j] || (values_[i] == values_[j] && i < j);
  });
  for (const std::int32_t i : order_) {
    const base::ExpertKey key = misses[static_cast<std::size_t>(i)].key;
    const std::int32_t slot = needed_.ByDecode(key)
                                  ? SlotFor(MostWorthDisplaced(values_[static_cast<std::size_t>(i)]))
                                  : residency_.device().FreeSlot();
    if (slot != kNoSlot) {
      Place(key, slot);
      decisions[static_cast<std::size_t>(i)].slot = slot;
    }
  }
}

void PooledDirector::PlanMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> misses,
                                absl::Span<const double> values, const api::LaneState& lanes,
                                absl::Span<api::MissDecision> decisions) {
  planner_.Assign(misses, values, lanes, decisions);
}

std::int32_t PooledDirector::SlotFor(double value) {
  const SlotTable& device = residency_.device();
  if (device.FreeSlot() != kNoSlot) {
    return device.FreeSlot();
  }
  const std::int32_t slot = victims_.Lowest([this, &device](std::int32_t candidate) {
    return !needed_.Contains(*device.KeyIn(candidate)) && MayDisplace(candidate);
  });
  return slot == kNoSlot || victims_.worth(slot).value > value ? kNoSlot : slot;
}

void PooledDirector::Place(base::ExpertKey key, std::int32_t slot) {
  const Residency::Moved moved = residency_.PlaceOnDevice(key, slot);
  victims_.Set(slot, WorthOf(key));
  Placed(key, moved);
}

void PooledDirector::OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  if (residency_.Vacate(tier, slot, key, usable) && tier == base::Tier::kDevice) {
    victims_.Remove(slot);
  }
}

}  // namespace comoe::routing
