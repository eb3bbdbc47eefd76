// What the hub does, made visible: as metrics, and in a log line where it changes its ways.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "engine/api/expert_director.h"
#include "engine/base/metrics_sink.h"
#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/hub_report.h"
#include "scheduler/routing/prefetch_judge.h"

namespace comoe::routing {

// Owned by the engine thread. Counters move by what the report's sums grew since the last one.
class HubReporter {
 public:
  // `first` says how far ahead guesses may reach: each distance up to there has series of its own. `sink`
  // outlives it.
  HubReporter(base::MetricsSink& sink, const HubReport& first);
  // Says in a log line, once for each change, that prefetch stopped or goes on, that misses are served by a
  // static plan or not any more, and how far the look-ahead was cut.
  void Update(const HubReport& report);

 private:
  struct Distance {
    base::Gauge* on = nullptr;
    base::Gauge* precision = nullptr;
    base::Counter* guesses = nullptr;
    base::Counter* right = nullptr;
    base::Counter* wrong = nullptr;
  };
  void AttachDistances(base::MetricsSink& sink);
  void LogChanges(const HubReport& report) const;

  const std::size_t num_distances_;
  std::array<Distance, PrefetchJudge::kNumDistances> distances_{};
  base::Gauge* prefetching_ = nullptr;
  base::Counter* hinted_ = nullptr;
  base::Counter* kept_behind_ = nullptr;
  base::Gauge* fallen_back_ = nullptr;
  base::Counter* fallbacks_ = nullptr;
  base::Gauge* look_ahead_ = nullptr;
  base::Counter* late_ = nullptr;
  base::Counter* dropped_ = nullptr;
  base::Gauge* warm_ = nullptr;
  HubReport told_;
};

// Reports after every step. `inner` is or contains `hub`; `sink` outlives it.
std::unique_ptr<api::ExpertDirector> MakeReportingDirector(std::unique_ptr<api::ExpertDirector> inner,
                                                           const HubDirector& hub, base::MetricsSink& sink);

}  // namespace comoe::routing
