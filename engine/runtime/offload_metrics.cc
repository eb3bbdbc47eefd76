#include "engine/runtime/offload_metrics.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"

namespace comoe::runtime {
namespace {

// What a compute stream does; host experts and copies have streams of their own.
constexpr std::array kComputeStages = {
    base::StageKind::kOther,        base::StageKind::kEmbed,     base::StageKind::kAttention,
    base::StageKind::kGate,         base::StageKind::kLookahead, base::StageKind::kExpert,
    base::StageKind::kSharedExpert, base::StageKind::kCombine,   base::StageKind::kHead};

std::string Name(absl::string_view name) { return std::string(name); }

// As labels are written.
std::string Label(absl::string_view name) { return absl::StrReplaceAll(name, {{" ", "_"}, {"-", "_"}}); }

std::vector<double> CopyBuckets() {
  std::vector<double> buckets;
  double bound = 1e-4;
  for (int i = 0; i < 18; ++i) {
    buckets.push_back(bound);
    bound *= 1.8;
  }
  return buckets;
}

}  // namespace

void OffloadMetrics::Sum::MoveTo(double total) {
  if (total > told_) {
    counter_->Increment(total - told_);
    told_ = total;
  }
}

OffloadMetrics::OffloadMetrics(base::MetricsSink& sink) {
  AttachTiers(sink);
  AttachCopies(sink);
  AttachTimes(sink);
}

void OffloadMetrics::AttachTiers(base::MetricsSink& sink) {
  for (const base::Tier tier : base::kTiers) {
    TierFamily& family = tiers_[static_cast<std::size_t>(tier)];
    const std::string name = Name(base::TierName(tier));
    const char* const lookups = "Needed experts looked for in a tier; a miss is looked for in the next one.";
    family.hits.Attach(sink.AddCounter("expert_lookups_total", lookups, {{"tier", name}, {"result", "hit"}}));
    family.misses.Attach(
        sink.AddCounter("expert_lookups_total", lookups, {{"tier", name}, {"result", "miss"}}));
    family.evictions.Attach(sink.AddCounter(
        "expert_evictions_total", "Experts that made room for another in a tier.", {{"tier", name}}));
    family.bytes =
        &sink.AddGauge("expert_cache_bytes", "Bytes of the experts that lie in a tier.", {{"tier", name}});
    family.capacity =
        &sink.AddGauge("expert_cache_capacity_bytes",
                       "Bytes reserved for experts in a tier, staging included.", {{"tier", name}});
    family.entries = &sink.AddGauge("expert_cache_entries", "Experts that lie in a tier.", {{"tier", name}});
  }
  const char* const served = "Needed experts, one for each layer and step, by how they were served.";
  hit_.Attach(sink.AddCounter("expert_served_total", served, {{"decision", "hit"}}));
  fetch_.Attach(sink.AddCounter("expert_served_total", served, {{"decision", "fetch"}}));
  host_.Attach(sink.AddCounter("expert_served_total", served, {{"decision", "host"}}));
}

void OffloadMetrics::AttachCopies(base::MetricsSink& sink) {
  for (std::size_t d = 0; d < base::kNumCopyDirections; ++d) {
    DirectionFamily& family = directions_[d];
    const std::string direction = Name(base::CopyDirectionName(static_cast<base::CopyDirection>(d)));
    for (std::size_t r = 0; r < base::kNumCopyReasons; ++r) {
      family.bytes.values[r].Attach(
          sink.AddCounter("expert_transfer_bytes_total",
                          "Bytes of experts copied; what became of prefetched ones is told apart.",
                          {{"direction", direction},
                           {"reason", Name(base::CopyReasonName(static_cast<base::CopyReason>(r)))}}));
    }
    const base::Labels labels = {{"direction", direction}};
    for (std::size_t r = 0; r < base::kNumCopyReasons; ++r) {
      family.seconds.values[r] = &sink.AddHistogram(
          "expert_transfer_seconds", "What the copy of an expert took, from when it could start.",
          {{"direction", direction},
           {"reason", Name(base::CopyReasonName(static_cast<base::CopyReason>(r)))}},
          CopyBuckets());
    }
    family.inflight =
        &sink.AddGauge("expert_transfer_inflight_bytes", "Bytes of copies that have not ended.", labels);
    family.rate =
        &sink.AddGauge("expert_copy_rate_bytes_per_second",
                       "Rate of an expert's copy alone, as measured of late; 0 where none was.", labels);
    family.busy.Attach(sink.AddCounter("expert_copy_busy_seconds_total",
                                       "Seconds with at least one copy under way.", labels));
    family.overlapped.Attach(sink.AddCounter("expert_copy_overlapped_seconds_total",
                                             "Of the busy seconds, those during which the device computed.",
                                             labels));
  }
  const char* const outcome = "Bytes prefetched to the device that a step read, or that were dropped unread.";
  prefetch_used_.Attach(sink.AddCounter("expert_prefetch_bytes_total", outcome, {{"outcome", "used"}}));
  prefetch_wasted_.Attach(sink.AddCounter("expert_prefetch_bytes_total", outcome, {{"outcome", "wasted"}}));
  prefetch_pending_ = &sink.AddGauge("expert_prefetch_pending_bytes",
                                     "Bytes prefetched to the device and neither read nor dropped yet.", {});
  failed_.Attach(sink.AddCounter("expert_copies_failed_total", "Copies that failed or never ended.", {}));
  cancelled_.Attach(sink.AddCounter("expert_prefetch_cancelled_total",
                                    "Guesses dropped while they waited for the link.", {}));
  unpinned_.Attach(sink.AddCounter("expert_copies_unpinned_total",
                                   "Copies to the device from memory that is not page-locked: slow.", {}));
  lost_slots_ = &sink.AddGauge("expert_slots_lost", "Slots given up since a copy into them never ended.", {});
  slow_unpinned_ =
      &sink.AddGauge("slow_path_active", "1 while a slow path is in use.", {{"kind", "unpinned"}});
}

void OffloadMetrics::AttachTimes(base::MetricsSink& sink) {
  for (std::size_t i = 0; i < kPhases.size(); ++i) {
    stall_[i] = &sink.AddCounter("expert_stall_seconds_total", "Seconds that the device waited for experts.",
                                 {{"phase", kPhases[i]}});
  }
  imbalance_ =
      &sink.AddHistogram("expert_load_imbalance_ratio",
                         "In a layer of a step, the rows of the expert with most over the mean of all.", {},
                         {1, 1.25, 1.5, 2, 3, 4, 8, 16, 32, 64});
  const char* const time =
      "Seconds of steps on the device's clock, by what the device did; they sum to their wall time.";
  compute_.Attach(sink.AddCounter("device_seconds_total", time, {{"kind", "compute"}}));
  other_.Attach(sink.AddCounter("device_seconds_total", time, {{"kind", "other"}}));
  for (std::size_t i = 0; i < base::kNumWaitEdges; ++i) {
    const std::string edge = Name(base::WaitEdgeName(static_cast<base::WaitEdge>(i)));
    stalled_[i].Attach(sink.AddCounter("device_seconds_total", time, {{"kind", "stall_" + edge}}));
  }
  for (const base::StageKind stage : kComputeStages) {
    stages_[static_cast<std::size_t>(stage)].Attach(sink.AddCounter(
        "device_compute_seconds_total", "Seconds that the device computed, by stage of a step.",
        {{"stage", Label(base::StageKindName(stage))}}));
  }
  const char* const director = "Seconds of real time of the engine thread in decisions about experts.";
  director_observe_.Attach(sink.AddCounter("director_seconds_total", director, {{"part", "observe"}}));
  director_plan_.Attach(sink.AddCounter("director_seconds_total", director, {{"part", "plan"}}));
  wall_.Attach(sink.AddCounter("device_wall_seconds_total", "Seconds of steps on the device's clock.", {}));
  host_lane_.Attach(
      sink.AddCounter("expert_host_seconds_total", "Seconds that the host computed experts.", {}));
}

void OffloadMetrics::Observe(absl::Span<const api::CopySample> copies, absl::Span<const double> imbalance) {
  for (const api::CopySample& copy : copies) {
    directions_[static_cast<std::size_t>(copy.direction)].seconds[copy.reason]->Observe(copy.seconds);
  }
  for (const double ratio : imbalance) {
    imbalance_->Observe(ratio);
  }
}

void OffloadMetrics::Update(const api::OffloadTotals& totals) {
  for (const base::Tier tier : base::kTiers) {
    TierFamily& family = tiers_[static_cast<std::size_t>(tier)];
    const api::TierTotals& sums = totals.tiers[tier];
    family.hits.MoveTo(static_cast<double>(sums.hits));
    family.misses.MoveTo(static_cast<double>(sums.misses));
    family.evictions.MoveTo(static_cast<double>(sums.evictions));
    family.bytes->Set(static_cast<double>(sums.used_bytes));
    family.capacity->Set(static_cast<double>(sums.capacity_bytes));
    family.entries->Set(static_cast<double>(sums.slots_used));
  }
  for (std::size_t d = 0; d < base::kNumCopyDirections; ++d) {
    DirectionFamily& family = directions_[d];
    const api::CopyTotals& sums = totals.copies.values[d];
    for (std::size_t r = 0; r < base::kNumCopyReasons; ++r) {
      family.bytes.values[r].MoveTo(static_cast<double>(sums.bytes.values[r]));
    }
    family.rate->Set(sums.bytes_per_second);
    family.inflight->Set(static_cast<double>(sums.inflight_bytes));
    family.busy.MoveTo(totals.copy_busy.values[d]);
    family.overlapped.MoveTo(totals.copy_overlapped.values[d]);
  }
  prefetch_used_.MoveTo(static_cast<double>(totals.prefetch_used_bytes));
  prefetch_wasted_.MoveTo(static_cast<double>(totals.prefetch_wasted_bytes));
  prefetch_pending_->Set(static_cast<double>(totals.prefetch_pending_bytes));
  hit_.MoveTo(static_cast<double>(totals.served_hit));
  fetch_.MoveTo(static_cast<double>(totals.served_fetch));
  host_.MoveTo(static_cast<double>(totals.served_host));
  failed_.MoveTo(static_cast<double>(totals.failed_copies));
  cancelled_.MoveTo(static_cast<double>(totals.cancelled_guesses));
  unpinned_.MoveTo(static_cast<double>(totals.unpinned_copies));
  lost_slots_->Set(static_cast<double>(totals.lost_slots));
  slow_unpinned_->Set(totals.unpinned_copies > 0 ? 1.0 : 0.0);
  compute_.MoveTo(totals.compute);
  other_.MoveTo(totals.other);
  for (std::size_t i = 0; i < base::kNumWaitEdges; ++i) {
    stalled_[i].MoveTo(totals.stalled.values[i]);
  }
  for (const base::StageKind stage : kComputeStages) {
    stages_[static_cast<std::size_t>(stage)].MoveTo(totals.compute_stages[stage]);
  }
  director_observe_.MoveTo(totals.director_observe);
  director_plan_.MoveTo(totals.director_plan);
  wall_.MoveTo(totals.wall);
  host_lane_.MoveTo(totals.host_lane);
}

}  // namespace comoe::runtime
