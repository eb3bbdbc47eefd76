// What `comoe trace replay` finds out, and how it is shown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/offload_plot.h"
#include "nlohmann/json.hpp"
#include "scheduler/routing/oracle.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_stats.h"

namespace comoe::cli {

// A policy, or the oracle, at a capacity and batch.
struct ReplayPoint {
  std::string policy;
  double capacity = 0.0;
  std::int32_t batch = 0;
  routing::TimedTotals totals;
};

// What eviction alone can reach at a capacity and batch.
struct EvictionBound {
  double capacity = 0.0;
  std::int32_t batch = 0;
  routing::OfflineRates optimal;
  double decayed_97 = 0.0;  // per layer, as published
  double best_decayed = 0.0;
  double best_decay = 0.0;
  bool best_per_layer = true;
};

struct ReplayReport {
  std::vector<ReplayPoint> points;
  std::vector<EvictionBound> bounds;
  std::vector<routing::ForecastQuality> forecasts;
};

// `seconds`: times are in seconds, else in computations of an expert; expert_bytes 0: not known.
void PrintReplay(const ReplayReport& report, bool seconds, std::uint64_t expert_bytes);
nlohmann::json ReplayJson(const ReplayReport& report, bool seconds);
// Hit rate and speed over the capacity, a plot for each batch (or, with one capacity, over the batch).
std::vector<Plot> ReplayPlots(const ReplayReport& report);

}  // namespace comoe::cli
