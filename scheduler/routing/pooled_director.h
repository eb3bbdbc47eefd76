// What policies that keep experts on demand have in common: one pool of device slots over all layers, a
// victim by worth, and the rule that prefill rows do not displace what decode rows use. A policy says what an
// expert is worth and what it learns from routing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/base/ids.h"
#include "scheduler/routing/miss_planner.h"
#include "scheduler/routing/needed_set.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/residency.h"
#include "scheduler/routing/step_rows.h"
#include "scheduler/routing/tier_shape.h"
#include "scheduler/routing/victim_heap.h"

namespace comoe::routing {

// A miss takes a free slot, or that of the expert least worth keeping which the layer at hand does not need;
// it passes through staging if all those are worth more than it is, or if only prefill rows need it and no
// slot is free. Owned by the engine thread; allocates nothing once the largest step has been seen.
class PooledDirector : public api::ExpertDirector {
 public:
  std::vector<api::FetchOrder> InitialOrders() override;
  void BeginStep(const api::StepPlan& plan) override;
  const api::SlotMap& slots(std::int32_t layer) const override { return residency_.device().map(layer); }
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override;
  // Routing that arrives after its layer's misses were decided is only learnt from; until then any expert of
  // the layer counts as needed.
  void ObserveRouting(const api::RoutingObservation& observation) override;
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override;
  void EndStep() override {}

 protected:
  PooledDirector(const TierShape& shape, const PolicyOptions& options);

  // What it is worth to have the expert on the device. Changes for experts of one layer only, in Learn.
  virtual double Value(base::ExpertKey key) const = 0;
  // The routing [n, k] of decode rows (at a cold start, of prefill rows).
  virtual void Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) = 0;
  // Sets decisions[i].serving. values[i]: of misses[i].
  virtual void PlanMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                          absl::Span<const double> values, const api::LaneState& lanes,
                          absl::Span<api::MissDecision> decisions);
  // What the expert in a slot may be worth at most to make room for a miss of that value.
  virtual double MostWorthDisplaced(double value) const { return value; }
  // Whether the slot, whose expert the layer at hand does not need, may be emptied now.
  virtual bool MayDisplace(std::int32_t /*slot*/) const { return true; }
  // An expert has come to the device.
  virtual void Placed(base::ExpertKey /*key*/, const Residency::Moved& /*moved*/) {}

  // Makes `layer` the layer at hand; if its routing is not known, all of it counts as needed.
  void EnterLayer(std::int32_t layer);
  void Place(base::ExpertKey key, std::int32_t slot);
  // A device slot that no expert needed by the layer at hand is in, for something of that value: free, or its
  // expert is worth `value` at most. kNoSlot: none.
  std::int32_t SlotFor(double value);
  // What the expert in a used slot was worth when its layer was at hand last.
  double WorthOfSlot(std::int32_t slot) const { return victims_.worth(slot).value; }

  const TierShape& shape() const { return shape_; }
  const NeededSet& needed() const { return needed_; }
  const StepRows& rows() const { return rows_; }
  Residency& residency() { return residency_; }
  const Residency& residency() const { return residency_; }

 private:
  Worth WorthOf(base::ExpertKey key) const { return {Value(key), last_use_[shape_.Index(key)]}; }

  const TierShape shape_;
  Residency residency_;
  VictimHeap victims_;  // of the device
  StepRows rows_;
  NeededSet needed_;
  MissPlanner planner_;
  std::uint64_t clock_ = 0;              // counts uses
  std::vector<std::uint64_t> last_use_;  // [num_layers, num_experts], of clock_
  std::vector<double> values_;           // scratch of DecideMisses
  std::vector<std::int32_t> order_;      // scratch of DecideMisses
};

}  // namespace comoe::routing
