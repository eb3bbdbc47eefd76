#include "scheduler/routing/fixed_director.h"

#include <cstddef>
#include <cstdint>

#include "scheduler/routing/initial_fill.h"

namespace comoe::routing {

FixedDirector::FixedDirector(absl::string_view policy, const TierShape& shape, const PolicyOptions& options,
                             std::int32_t num_on_device)
    : policy_(policy), residency_(shape), planner_(options.host_lane, shape.num_experts) {
  std::int32_t on_device = 0;
  for (const base::ExpertKey key : KeysByHotness(shape, options.hot_counts)) {
    if (on_device < num_on_device) {
      residency_.PlaceOnDevice(key, residency_.device().FreeSlot());
      ++on_device;
    } else if (residency_.pinned().FreeSlot() != kNoSlot) {
      residency_.PlacePinned(key, residency_.pinned().FreeSlot());
    } else {
      break;
    }
  }
}

std::vector<api::FetchOrder> FixedDirector::InitialOrders() {
  std::vector<api::FetchOrder> orders;
  AppendWarmupOrders(residency_.device(), base::Tier::kDevice, &orders);
  AppendWarmupOrders(residency_.pinned(), base::Tier::kPinned, &orders);
  return orders;
}

void FixedDirector::BeginStep(const api::StepPlan& /*plan*/) {}

const api::SlotMap& FixedDirector::slots(std::int32_t layer) const { return residency_.device().map(layer); }

void FixedDirector::DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> misses,
                                 const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) {
  planner_.Assign(misses, {}, lanes, decisions);
}

void FixedDirector::ObserveRouting(const api::RoutingObservation& /*observation*/) {}

void FixedDirector::OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  residency_.Vacate(tier, slot, key, usable);
}

void FixedDirector::EndStep() {}

}  // namespace comoe::routing
