// What the streams of an emulated device on the real clock share: the link, events, and the measuring.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/stage.h"
#include "engine/base/sync.h"
#include "engine/device/device.h"
#include "engine/device/emulated/busy_meter.h"
#include "engine/device/emulated/costs.h"
#include "engine/device/emulated/emulated_device.h"
#include "engine/device/emulated/emulated_memory.h"
#include "engine/device/emulated/event_pool.h"
#include "engine/device/emulated/ticks.h"
#include "engine/device/emulated/timeline.h"

namespace comoe::device {

// One mutex and one condition for all that threads wait for: an event, work to do, work done, a stream's end.
struct Meeting {
  base::Mutex mutex;
  base::CondVar changed;
  const std::chrono::steady_clock::time_point origin = std::chrono::steady_clock::now();

  Ticks Now() const {
    const std::chrono::nanoseconds since = std::chrono::steady_clock::now() - origin;
    return Ticks{since.count()} * 1000;
  }
  // Until `changed`, or that time.
  void WaitUntil(Ticks time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

// Thread-safe.
class RealEvent final : public Event::State {
 public:
  // Only its maker has it yet.
  void Set(Meeting* meeting, EventPool<RealEvent>* pool);

  bool Done() const override;
  absl::Status Synchronize(absl::Duration limit) override { return Await(limit, nullptr); }
  double Seconds() const override;

  // As Synchronize; CANCELLED once *stop (which changes under the meeting's mutex) is set.
  absl::Status Await(absl::Duration limit, const std::atomic<bool>* stop);
  void Happen(const absl::Status& status);
  // It will not happen.
  void Hang();

 protected:
  void Recycle() override;

 private:
  enum class Phase { kPending, kHappened, kHung };

  Meeting* meeting_ = nullptr;
  EventPool<RealEvent>* pool_ = nullptr;
  Phase phase_ ABSL_GUARDED_BY(meeting_->mutex) = Phase::kPending;
  absl::Status status_ ABSL_GUARDED_BY(meeting_->mutex);
  Ticks time_ ABSL_GUARDED_BY(meeting_->mutex) = 0;
};

// A copy, decided on by the thread that queued it.
struct RealCopy {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::size_t bytes = 0;
  base::Stage stage;
  CopyRoute route;
  CopyFault fault;
};

using LaneId = std::size_t;

// Thread-safe.
class RealClock {
 public:
  // Both outlive it.
  RealClock(const EmulatedOptions& options, const EmulatedMemory& memory);

  LaneId AddLane(absl::string_view name, StreamKind kind) ABSL_LOCKS_EXCLUDED(mutex_);
  // They live as long as the clock.
  const std::string& lane_name(LaneId lane) const ABSL_LOCKS_EXCLUDED(mutex_);
  StreamKind lane_kind(LaneId lane) const ABSL_LOCKS_EXCLUDED(mutex_);

  Ticks Now() const { return meeting_.Now(); }
  Meeting& meeting() { return meeting_; }
  Timeline& timeline() { return timeline_; }

  Event MakeEvent();
  // Tells who wants to know, on the calling thread.
  void Happen(const Event& event, const absl::Status& status) ABSL_LOCKS_EXCLUDED(notices_mutex_);
  void Notify(const Event& event, EventListener& listener, std::uint64_t tag)
      ABSL_LOCKS_EXCLUDED(notices_mutex_);

  RealCopy PrepareCopy(std::byte* target, const std::byte* source, std::size_t bytes,
                       const base::Stage& stage);
  // Moves the bytes and lasts as long as that takes on the link; cut short once *stop is set. Not for one
  // that hangs.
  absl::Status RunCopy(LaneId lane, const RealCopy& copy, const std::atomic<bool>* stop)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void RunDiskRead(LaneId lane, std::size_t bytes, const base::Stage& stage, const std::atomic<bool>* stop)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Around a kernel; its begin is returned.
  Ticks BeginKernel(LaneId lane) ABSL_LOCKS_EXCLUDED(mutex_);
  Ticks EndKernel(LaneId lane, base::StageKind stage, Ticks begin) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddStall(base::WaitEdge edge, Ticks begin, Ticks end) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets go of what was measured.
  void Settle() ABSL_LOCKS_EXCLUDED(mutex_);
  DeviceTimes times() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Lane {
    std::string name;
    StreamKind kind;
    Ticks open = kNever;  // since when something goes on that the meter will hear of; kNever: nothing
  };
  struct Notice {
    Event event;
    EventListener* listener = nullptr;
    std::uint64_t tag = 0;
  };
  // Something that takes so long on a shared lane; the time it begins.
  Ticks Open(LaneId lane, base::CopyDirection direction, bool shared, Ticks takes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Ticks Close(LaneId lane, base::CopyDirection direction, Ticks begin) ABSL_LOCKS_EXCLUDED(mutex_);
  void SettleLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SleepUntil(Ticks time, const std::atomic<bool>* stop);

  const EmulatedOptions& options_;
  const EmulatedMemory& memory_;
  const Costs costs_;
  Meeting meeting_;
  Timeline timeline_;
  EventPool<RealEvent> events_;
  std::atomic<std::uint64_t> copies_{0};

  base::Mutex notices_mutex_;  // before the meeting's
  std::vector<Notice> notices_ ABSL_GUARDED_BY(notices_mutex_);

  mutable base::Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);
  base::PerKind<Ticks, base::kNumCopyDirections> link_free_ ABSL_GUARDED_BY(mutex_);
  BusyMeter meter_ ABSL_GUARDED_BY(mutex_);  // of copies and what overlaps them
  Ticks compute_ ABSL_GUARDED_BY(mutex_) = 0;
  base::PerKind<Ticks, base::kNumStageKinds> stages_ ABSL_GUARDED_BY(mutex_);  // of compute_
  Ticks host_lane_ ABSL_GUARDED_BY(mutex_) = 0;
  base::PerKind<Ticks, base::kNumWaitEdges> stalled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::device
