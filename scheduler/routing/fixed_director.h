// What `resident`, `static` and `naive` have in common: what is on the device is settled at start, and misses
// pass through staging slots (or the host lane).
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/base/ids.h"
#include "scheduler/routing/miss_planner.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/residency.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Owned by the engine thread.
class FixedDirector final : public api::ExpertDirector {
 public:
  // The first `num_on_device` of the hottest experts are on the device, the hottest others in the pinned
  // slots. `policy` outlives the director; num_on_device <= shape.device_slots.
  FixedDirector(absl::string_view policy, const TierShape& shape, const PolicyOptions& options,
                std::int32_t num_on_device);

  absl::string_view policy() const override { return policy_; }
  std::vector<api::FetchOrder> InitialOrders() override;
  void BeginStep(const api::StepPlan& plan) override;
  const api::SlotMap& slots(std::int32_t layer) const override;
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override;
  void ObserveRouting(const api::RoutingObservation& observation) override;
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override;
  void EndStep() override;

 private:
  const absl::string_view policy_;
  Residency residency_;
  MissPlanner planner_;
};

}  // namespace comoe::routing
