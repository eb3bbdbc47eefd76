// Streams of the emulated accelerator on the real clock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>

#include "engine/base/sync.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/emulated/emulated_stream.h"
#include "engine/device/emulated/real_clock.h"
#include "engine/device/emulated/ring.h"

namespace comoe::device {

// Does its work on the calling thread, when it is asked to: the compute stream, and what a QueuedStream's
// thread works with. Used by one thread at a time.
class InlineStream final : public EmulatedStream {
 public:
  // `threads` compute. `stop`, if any, cuts waits short once it is set.
  InlineStream(RealClock& clock, LaneId lane, int threads, const std::atomic<bool>* stop);
  ~InlineStream() override { Flush(); }

  DeviceId device() const override { return {DeviceKind::kEmulated, 0}; }
  CpuStream* cpu() override { return &cpu_; }
  void SetStage(const base::Stage& stage) override;
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
  void CountDiskRead(std::size_t bytes) override { clock_.RunDiskRead(lane_, bytes, stage_, stop_); }
  absl::StatusOr<Event> Record() override;
  absl::Status Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) override;
  absl::Status Synchronize() override;
  void BeginKernel() override { kernel_begin_ = clock_.BeginKernel(lane_); }
  void EndKernel(const KernelWork& work) override;

  void RunCopy(const RealCopy& copy);
  // Work so far is done: `event` happens, or never will.
  void Happen(const Event& event);
  void Fail(const absl::Status& error);
  // The first since the last call. Ends a span of kernels.
  absl::Status TakeError();

 private:
  void BeginHoldUp(base::WaitEdge edge) override;
  void EndHoldUp() override;
  void Flush() { span_.Flush(clock_.timeline(), name_); }

  RealClock& clock_;
  const LaneId lane_;
  const std::string& name_;
  const StreamKind kind_;
  const std::atomic<bool>* const stop_;
  base::ThreadPool pool_;
  CpuStream cpu_{pool_};

  base::Stage stage_;
  StageSpan span_{kLongest};
  Ticks kernel_begin_ = 0;
  base::WaitEdge held_up_along_ = base::WaitEdge::kDemandCopy;  // since...
  Ticks held_up_begin_ = 0;
  absl::Status status_;       // of the work since the last event
  bool hung_ = false;         // of the work since the last event, a copy never ends
  absl::Status first_error_;  // since the last Synchronize
};

// Does its work in order on a thread of its own: copy and host streams. What is left when it is destroyed is
// dropped, and its events are CANCELLED.
//
// Used by one thread at a time (which may change), listeners on its own thread included; those must not
// Synchronize it.
class QueuedStream final : public Stream {
 public:
  QueuedStream(RealClock& clock, LaneId lane);
  ~QueuedStream() override;

  DeviceId device() const override { return {DeviceKind::kEmulated, 0}; }
  void SetStage(const base::Stage& stage) override { stage_ = stage; }
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
  absl::Status Submit(HostWork& work) override;
  absl::StatusOr<Event> Record() override;
  absl::Status Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) override;
  absl::Status Synchronize() override;

 private:
  struct Op {
    enum class Kind { kCopy, kWork, kRecord, kWait };
    Kind kind = Kind::kRecord;
    base::Stage stage;
    RealCopy copy;
    HostWork* work = nullptr;
    Event event;
    base::WaitEdge edge = base::WaitEdge::kRows;
    absl::Duration limit;
  };

  // Its number.
  std::uint64_t Push(Op op) ABSL_LOCKS_EXCLUDED(meeting_.mutex);
  void AwaitDone(std::uint64_t number) ABSL_LOCKS_EXCLUDED(meeting_.mutex);
  void Run() ABSL_LOCKS_EXCLUDED(meeting_.mutex);
  void Execute(Op& op);

  RealClock& clock_;
  Meeting& meeting_;
  const StreamKind kind_;
  base::Stage stage_;  // the callers'
  std::atomic<bool> stop_{false};
  InlineStream work_;  // the thread's
  Ring<Op> ops_ ABSL_GUARDED_BY(meeting_.mutex);
  std::uint64_t queued_ ABSL_GUARDED_BY(meeting_.mutex) = 0;
  std::uint64_t done_ ABSL_GUARDED_BY(meeting_.mutex) = 0;
  absl::Status first_error_ ABSL_GUARDED_BY(meeting_.mutex);  // since the last Synchronize
  std::thread thread_;
};

}  // namespace comoe::device
