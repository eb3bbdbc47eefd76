#include "engine/runtime/offload_ledger.h"

#include <algorithm>
#include <utility>

namespace comoe::runtime {

OffloadLedger::OffloadLedger(device::Device& device, base::MetricsSink* metrics)
    : device_(device), metrics_(metrics == nullptr ? nullptr : std::make_unique<OffloadMetrics>(*metrics)) {}

void OffloadLedger::BeginStep() {
  begin_ = device_.Now();
  times_ = device_.times();
}

void OffloadLedger::EndStep(Phase phase, model::ServingScratch& serving, experts::ExpertCache& cache,
                            const DirectorSeconds& director) {
  const double wall = device_.Now() - begin_;
  const device::DeviceTimes now = device_.times();
  const bool measured = device_.id().kind != device::DeviceKind::kCpu;
  const double compute = measured ? now.compute - times_.compute : wall;
  double stalled = 0.0;
  for (std::size_t i = 0; i < base::kNumWaitEdges; ++i) {
    const double seconds = now.stalled.values[i] - times_.stalled.values[i];
    steps_.stalled.values[i] += seconds;
    stalled += seconds;
  }
  for (std::size_t i = 0; i < base::kNumStageKinds; ++i) {
    steps_.compute_stages.values[i] += now.compute_stages.values[i] - times_.compute_stages.values[i];
  }
  constexpr auto kAhead = base::StageKind::kLookahead;
  step_times_ = {wall, stalled, now.compute_stages[kAhead] - times_.compute_stages[kAhead]};
  steps_.wall += wall;
  steps_.compute += compute;
  steps_.other += wall - compute - stalled;
  for (std::size_t i = 0; i < base::kNumCopyDirections; ++i) {
    steps_.copy_busy.values[i] += now.copy_busy.values[i] - times_.copy_busy.values[i];
    steps_.copy_overlapped.values[i] += now.copy_overlapped.values[i] - times_.copy_overlapped.values[i];
  }
  steps_.host_lane += now.host_lane - times_.host_lane;
  steps_.served_hit += std::exchange(serving.served_hit, 0);
  steps_.served_fetch += std::exchange(serving.served_fetch, 0);
  steps_.served_host += std::exchange(serving.served_host, 0);
  steps_.director_observe = director.observe;
  steps_.director_plan = director.plan;
  last_stall_ = device_.simulated() ? absl::ZeroDuration() : absl::Seconds(stalled);
  totals_ = steps_;
  cache.AddTotals(totals_);
  if (metrics_ != nullptr) {
    metrics_->Update(totals_);
    metrics_->AddStall(static_cast<std::size_t>(phase), stalled);
    metrics_->Observe(cache.TakeCopySamples(), serving.imbalance);
  }
  serving.imbalance.clear();
}

}  // namespace comoe::runtime
