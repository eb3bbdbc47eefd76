// Keeps the sums of what serving experts has cost, step by step, and exports them.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "engine/api/expert_director.h"
#include "engine/api/offload.h"
#include "engine/base/metrics_sink.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/model/serving_scratch.h"
#include "engine/runtime/offload_metrics.h"
#include "engine/runtime/timed_director.h"

namespace comoe::runtime {

// Owned by the engine thread. Between BeginStep and EndStep the compute stream is used by the step only, and
// is synchronised at its end.
class OffloadLedger {
 public:
  OffloadLedger(device::Device& device, base::MetricsSink* metrics);

  void BeginStep();
  enum class Phase { kPrefill, kDecode, kMixed };
  // `director`: since the start.
  void EndStep(Phase phase, model::ServingScratch& serving, experts::ExpertCache& cache,
               const DirectorSeconds& director);

  const api::OffloadTotals& totals() const { return totals_; }
  // Of the last step's wall time on the real clock.
  absl::Duration last_stall() const { return last_stall_; }
  // Of the last step.
  const api::StepTimes& step_times() const { return step_times_; }

 private:
  device::Device& device_;
  std::unique_ptr<OffloadMetrics> metrics_;  // nullptr: nobody listens
  double begin_ = 0.0;
  device::DeviceTimes times_;
  api::OffloadTotals steps_;   // what is summed here
  api::OffloadTotals totals_;  // and what the cache adds
  absl::Duration last_stall_ = absl::ZeroDuration();
  api::StepTimes step_times_;
};

}  // namespace comoe::runtime
