#include "scheduler/routing/miss_planner.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace comoe::routing {

MissPlanner::MissPlanner(bool host_lane, std::int32_t max_misses) : host_lane_(host_lane) {
  order_.reserve(static_cast<std::size_t>(max_misses));
}

void MissPlanner::Assign(absl::Span<const api::ExpertDemand> misses, absl::Span<const double> values,
                         const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) {
  std::fill(decisions.begin(), decisions.end(), api::MissDecision{});
  if (!host_lane_ || !(lanes.host_seconds_per_expert > 0.0)) {
    return;
  }
  order_.resize(misses.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [misses, values](std::int32_t a, std::int32_t b) {
    const auto i = static_cast<std::size_t>(a);
    const auto j = static_cast<std::size_t>(b);
    if (misses[i].rows != misses[j].rows) {
      return misses[i].rows > misses[j].rows;
    }
    if (!values.empty() && values[i] != values[j]) {
      return values[i] > values[j];
    }
    return i < j;
  });
  double link_free = lanes.link_queue_seconds;
  double host_free = 0.0;
  for (const std::int32_t i : order_) {
    const double rows = misses[static_cast<std::size_t>(i)].rows;
    const double link_done = link_free + lanes.link_seconds_per_expert;
    const double host_done =
        host_free + lanes.host_seconds_per_expert + (rows - 1.0) * lanes.host_seconds_per_row;
    if (host_done < link_done + lanes.device_seconds_per_expert) {
      decisions[static_cast<std::size_t>(i)].serving = api::ServingDecision::kHost;
      host_free = host_done;
    } else {
      link_free = link_done;
    }
  }
}

}  // namespace comoe::routing
