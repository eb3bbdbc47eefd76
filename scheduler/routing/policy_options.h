// The settings of a policy, each with the default that `comoe` documents.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "scheduler/routing/parameters.h"

namespace comoe::routing {

struct PolicyOptions {
  // Misses may be answered with kHost, while the link is busy (see miss_planner.h).
  bool host_lane = false;

  // How often a trace used each expert, [num_layers, num_experts], or empty. What `static` keeps on the
  // device, and what every policy puts into the pinned tier at start, most used first. Where counts are equal
  // or absent, expert 0 of every layer comes first, then expert 1 of every layer...
  std::vector<double> hot_counts;

  // `simple`:
  std::int32_t window = 100;  // rows of the sliding window
  // Prefetch orders for a layer at most; -1: experts_per_token.
  std::int32_t prefetch_per_layer = -1;
  // An expert is prefetched over one on the device only if the window used it this many times more.
  double prefetch_margin = 2.0;
  // Orders into the pinned tier after a layer at most, and by how many uses an expert must lead there.
  std::int32_t promotions_per_layer = 2;
  double promotion_margin = 2.0;  // of `hub`, too

  // `hub`:
  HubParameters hub = ModeParameters(HubMode::kLatency);
  // Seconds of a clock that runs while the predictor does: predictor_thread 2 goes by it. Empty: time is
  // virtual, and the predictor stays where it is.
  std::function<double()> clock;
  std::uint64_t expert_bytes = 0;  // of a blob; 0: not known, and no bound on bytes in flight
};

}  // namespace comoe::routing
