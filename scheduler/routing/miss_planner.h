// Which misses are copied and which the host computes: what any policy does about its misses once the host
// lane is on. Not thread-safe; nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"

namespace comoe::routing {

// Each miss goes to the lane that would be done with it first, those with most rows first: a copy takes as
// long for many rows as for one, the host does not. With the lane off, or with none (LaneState), all are
// copied.
class MissPlanner {
 public:
  // `max_misses`: of one call; the experts of a layer.
  MissPlanner(bool host_lane, std::int32_t max_misses);

  // Sets decisions[i].serving, kFetch or kHost, and no slot. `values` is empty, or says what it is worth to
  // have misses[i] on the device afterwards: among misses of as many rows the more valuable is copied.
  void Assign(absl::Span<const api::ExpertDemand> misses, absl::Span<const double> values,
              const api::LaneState& lanes, absl::Span<api::MissDecision> decisions);

 private:
  const bool host_lane_;
  std::vector<std::int32_t> order_;  // scratch
};

}  // namespace comoe::routing
