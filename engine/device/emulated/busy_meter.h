// Sums of what an emulated device's lanes did, exact up to a moment that moves on.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "engine/base/stage.h"
#include "engine/device/device.h"
#include "engine/device/emulated/ticks.h"

namespace comoe::device {

// Stretches of time when a lane was busy: in order, apart from each other, none empty. Not thread-safe.
class BusySpans {
 public:
  struct Span {
    Ticks begin = 0;
    Ticks end = 0;
  };

  // Joined to what it overlaps or touches. O(1) when it comes last.
  void Add(Ticks begin, Ticks end);
  // How much of it lies before `until`, and how much of that within `other`.
  Ticks Before(Ticks until) const;
  Ticks OverlapBefore(const BusySpans& other, Ticks until) const;
  void Drop(Ticks until);

 private:
  std::vector<Span> spans_;
};

// Adds up busy time, keeping only stretches that are not over yet. Not thread-safe. Steady use allocates
// nothing.
class BusyMeter {
 public:
  // What is added later begins at the last Settle's time at the earliest.
  void AddCompute(base::StageKind stage, Ticks begin, Ticks end) {
    compute_.Add(begin, end);
    stages_[stage].Add(begin, end);
  }
  void AddHostLane(Ticks begin, Ticks end) { host_lane_.Add(begin, end); }
  void AddCopy(base::CopyDirection direction, Ticks begin, Ticks end) { copies_[direction].Add(begin, end); }
  void AddStall(base::WaitEdge edge, Ticks begin, Ticks end) { stalls_[edge].Add(begin, end); }

  // Counts all that lies before `until`.
  void Settle(Ticks until);
  // What is counted.
  DeviceTimes times() const;

 private:
  BusySpans compute_;
  base::PerKind<BusySpans, base::kNumStageKinds> stages_;  // of compute_
  BusySpans host_lane_;
  base::PerKind<BusySpans, base::kNumCopyDirections> copies_;
  base::PerKind<BusySpans, base::kNumWaitEdges> stalls_;

  Ticks compute_sum_ = 0;
  base::PerKind<Ticks, base::kNumStageKinds> stage_sum_;
  Ticks host_lane_sum_ = 0;
  base::PerKind<Ticks, base::kNumCopyDirections> busy_sum_;
  base::PerKind<Ticks, base::kNumCopyDirections> overlap_sum_;
  base::PerKind<Ticks, base::kNumWaitEdges> stall_sum_;
};

}  // namespace comoe::device
