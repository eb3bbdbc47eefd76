// The hub's serving decisions: of a layer's misses, which are copied and which the host computes.
//
// Copies take the same time each, one after another, and the device computes what has arrived; the host takes
// longer the more rows a miss has. So for any number of misses on the host, those of fewest rows belong
// there, and trying every number finds the split that ends first. What a copy is worth later (the expert may
// be hit next time) moves single misses over, within bounds. Not thread-safe; allocates nothing after
// construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"

namespace comoe::routing {

// Which splits are considered.
enum class SplitKind : std::uint8_t { kSplit, kCopyOnly, kHostOnly };

// When the last of a layer's misses is done, counted from the decision.
double CopySeconds(std::int64_t num_copies, const api::LaneState& lanes);
double HostSeconds(std::int32_t rows, const api::LaneState& lanes);

struct PlannedSeconds {
  double chosen = 0.0;
  double split = 0.0;  // the best split, later use left aside
  double copy_only = 0.0;
  double host_only = 0.0;  // as copy_only where there is no host lane
};

class SplitPlanner {
 public:
  // `max_misses`: of one call. `hysteresis`: a measured rate is believed anew once it has changed by that
  // share.
  SplitPlanner(bool host_lane, std::int32_t max_misses, double hysteresis);

  // Sets decisions[i].serving, kFetch or kHost, and no slot. saved[i]: seconds that having misses[i] on the
  // device is expected to save later; empty: nothing. The plan ends at most 8 % after the best, and at most
  // 2 % after the better of copying all and computing all on the host.
  PlannedSeconds Assign(absl::Span<const api::ExpertDemand> misses, absl::Span<const double> saved,
                        SplitKind kind, const api::LaneState& lanes, absl::Span<api::MissDecision> decisions);

  bool host_lane(const api::LaneState& lanes) const {
    return host_lane_ && lanes.host_seconds_per_expert > 0.0;
  }

 private:
  api::LaneState Steady(const api::LaneState& lanes);
  // Puts the misses into order_, those that belong on the host first.
  void Sort(absl::Span<const api::ExpertDemand> misses, absl::Span<const double> saved,
            const api::LaneState& lanes, double weight);
  // The best number of misses of order_ on the host, among those that end by `latest`.
  std::size_t BestCount(absl::Span<const api::ExpertDemand> misses, absl::Span<const double> saved,
                        const api::LaneState& lanes, double latest, double* seconds, double* cost) const;

  const bool host_lane_;
  const double hysteresis_;
  api::LaneState steady_;
  std::vector<std::int32_t> order_;  // scratch
  std::vector<std::int32_t> best_;   // scratch
};

}  // namespace comoe::routing
