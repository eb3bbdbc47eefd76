// What serving experts through tiers has cost since the start: sums, for reports and metrics. Conserved:
// bytes by reason sum to bytes copied, hits and misses to lookups, times to wall time.
#pragma once

#include <cstdint>

#include "engine/base/stage.h"

namespace comoe::api {

struct TierTotals {
  std::uint64_t slots = 0;  // places for a blob; 0: the tier is not used. host, disk: experts that lie there
  std::uint64_t slots_used = 0;      // holding an expert now
  std::uint64_t used_bytes = 0;      // of these experts
  std::uint64_t capacity_bytes = 0;  // reserved for experts, staging included
  std::uint64_t staging_bytes = 0;   // of it
  std::uint64_t hits = 0;            // needed experts that were found here...
  std::uint64_t misses = 0;          // ...or looked for and not found: looked for in the next tier then
  std::uint64_t evictions = 0;
};

struct CopyTotals {
  base::PerKind<std::uint64_t, base::kNumCopyReasons> bytes;  // of copies that ended well
  std::uint64_t copies = 0;
  double seconds = 0.0;  // sum over copies, from when each could start to its end:bytes / seconds is the rate
  double bytes_per_second = 0.0;     // of a blob alone, as measured of late; 0: never
  std::uint64_t inflight_bytes = 0;  // of copies that have not ended
};

// One copy that ended well.
struct CopySample {
  base::CopyDirection direction = base::CopyDirection::kHostToDevice;
  base::CopyReason reason = base::CopyReason::kDemand;
  double seconds = 0.0;
};

struct OffloadTotals {
  base::PerKind<TierTotals, base::kNumTiers> tiers;
  base::PerKind<CopyTotals, base::kNumCopyDirections> copies;
  // Of prefetched bytes that went to the device: read by a step, dropped unread, or not decided yet.
  std::uint64_t prefetch_used_bytes = 0;
  std::uint64_t prefetch_wasted_bytes = 0;
  std::uint64_t prefetch_pending_bytes = 0;

  // How needed experts were served (one count for an expert, layer and step), and rows so served.
  std::uint64_t served_hit = 0, served_fetch = 0, served_host = 0;

  std::uint64_t failed_copies = 0;      // failed or timed out
  std::uint64_t cancelled_guesses = 0;  // while they waited for the link
  std::uint64_t unpinned_copies = 0;    // from pageable memory straight to the device: slow
  std::uint64_t lost_slots = 0;         // given up, since a copy into them never ended

  // Seconds on the device's clock, of steps. wall = compute + all stalls + other.
  double wall = 0.0;
  double compute = 0.0;
  base::PerKind<double, base::kNumStageKinds> compute_stages;  // of it; all zero where nobody measures
  base::PerKind<double, base::kNumWaitEdges> stalled;
  double other = 0.0;  // the device had nothing to do: the host was composing its work
  base::PerKind<double, base::kNumCopyDirections> copy_busy;
  base::PerKind<double, base::kNumCopyDirections> copy_overlapped;  // of it, while the device computed
  double host_lane = 0.0;

  // Seconds of real time that the engine thread has spent in its director's calls: hearing what happened, and
  // deciding.
  double director_observe = 0.0;
  double director_plan = 0.0;
};

}  // namespace comoe::api
