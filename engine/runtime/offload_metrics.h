// The expert, transfer, tier, stall and memory families of metrics, from the ledger's sums.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/api/offload.h"
#include "engine/base/metrics_sink.h"
#include "engine/base/stage.h"

namespace comoe::runtime {

// Owned by the engine thread. Counters move by what the sums grew since the last update; every member of
// every family is there from the start.
class OffloadMetrics {
 public:
  explicit OffloadMetrics(base::MetricsSink& sink);
  void Update(const api::OffloadTotals& totals);
  static constexpr std::array<const char*, 3> kPhases = {"prefill", "decode", "mixed"};
  void AddStall(std::size_t phase, double seconds) { stall_[phase]->Increment(seconds); }
  void Observe(absl::Span<const api::CopySample> copies, absl::Span<const double> imbalance);

 private:
  // A counter and what it has been told so far.
  class Sum {
   public:
    void Attach(base::Counter& counter) { counter_ = &counter; }
    void MoveTo(double total);

   private:
    base::Counter* counter_ = nullptr;
    double told_ = 0.0;
  };
  struct TierFamily {
    Sum hits, misses, evictions;
    base::Gauge* bytes = nullptr;
    base::Gauge* capacity = nullptr;
    base::Gauge* entries = nullptr;
  };
  struct DirectionFamily {
    base::PerKind<Sum, base::kNumCopyReasons> bytes;
    base::PerKind<base::Histogram*, base::kNumCopyReasons> seconds;
    base::Gauge* inflight = nullptr;
    base::Gauge* rate = nullptr;
    Sum busy, overlapped;
  };

  void AttachTiers(base::MetricsSink& sink);
  void AttachCopies(base::MetricsSink& sink);
  void AttachTimes(base::MetricsSink& sink);

  std::array<TierFamily, base::kNumTiers> tiers_;
  std::array<DirectionFamily, base::kNumCopyDirections> directions_;
  Sum prefetch_used_, prefetch_wasted_;
  base::Gauge* prefetch_pending_ = nullptr;
  Sum hit_, fetch_, host_;
  Sum failed_, cancelled_, unpinned_;
  base::Gauge* lost_slots_ = nullptr;
  base::Gauge* slow_unpinned_ = nullptr;
  Sum wall_, compute_, other_, host_lane_;
  std::array<Sum, base::kNumWaitEdges> stalled_;
  std::array<Sum, base::kNumStageKinds> stages_;
  Sum director_observe_, director_plan_;
  std::array<base::Counter*, 3> stall_{};
  base::Histogram* imbalance_ = nullptr;
};

}  // namespace comoe::runtime
