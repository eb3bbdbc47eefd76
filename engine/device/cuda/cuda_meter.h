// What the lanes of a CUDA device did and when, from events that the GPU stamps: sums (DeviceTimes) and, when
// somebody listens, a timeline. Costs two events a copy, one a wait of the compute stream for something that
// has not happened yet, two a stretch of work between synchronisations and two a hold-up; nothing when it is
// off.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/base/stage.h"
#include "engine/base/sync.h"
#include "engine/device/device.h"
#include "engine/device/emulated/busy_meter.h"
#include "engine/device/emulated/ring.h"
#include "engine/device/emulated/ticks.h"

namespace comoe::device {

// From when on a lane does what.
struct CudaMark {
  enum class What { kIdle, kWork, kStall, kCopy };
  What what = What::kIdle;
  base::Stage stage;
  base::WaitEdge edge = base::WaitEdge::kDemandCopy;
  base::CopyDirection direction = base::CopyDirection::kHostToDevice;
  std::size_t bytes = 0;
};

// Thread-safe.
class CudaMeter {
 public:
  explicit CudaMeter(bool on) : on_(on) {}

  bool on() const { return on_; }
  bool listening() const { return sink_.load(std::memory_order_acquire) != nullptr; }
  void SetSink(TimelineSink* sink) { sink_.store(sink, std::memory_order_release); }

  // `name` lives on in the meter.
  std::size_t AddLane(absl::string_view name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Its stream is at an end: what that has done is counted. The next lane of this name is this one.
  void DropLane(std::size_t lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // From `event` on, or from the mark before where that comes later, the lane does that; marks of a lane come
  // in the order of its stream. `event` may be another stream's, which this one waits for.
  void Add(std::size_t lane, const CudaMark& mark, const Event& event) ABSL_LOCKS_EXCLUDED(mutex_);
  // A stretch of a host stream's, known when it is over. kWork counts as the host lane's.
  void AddHost(std::size_t lane, const CudaMark& mark, double begin, double end) ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts what lies between marks whose events have happened.
  void Collect() ABSL_LOCKS_EXCLUDED(mutex_);
  // All that ended before `now`.
  DeviceTimes times(double now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Stamped {
    CudaMark mark;
    Event event;
  };
  struct Lane {
    std::string name;
    bool dropped = false;
    Ring<Stamped> marks;
    CudaMark open;  // what it does since `begin`
    double begin = 0.0;
    double counted = 0.0;  // up to where that is in the sums
  };
  void CollectLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the lane does, up to `end`.
  void Count(Lane& lane, double end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Show(const Lane& lane, double end) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool on_;
  std::atomic<TimelineSink*> sink_{nullptr};
  base::Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);
  BusyMeter meter_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::device
