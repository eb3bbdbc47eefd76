// The host as a device: buffers are host memory, and a stream runs its work at once on the calling thread and
// the device's thread pool. So every event has happened when Record returns.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/base/thread_pool.h"
#include "engine/device/device.h"

namespace comoe::device {

// Where the streams of one device report their stages, if anywhere.
struct CpuTimeline {
  TimelineSink* sink = nullptr;
};

class CpuStream final : public Stream {
 public:
  // `pool` outlives the stream; streams of one device share it and are used by one thread.
  explicit CpuStream(base::ThreadPool& pool, std::string name = "", CpuTimeline* timeline = nullptr)
      : pool_(pool), name_(std::move(name)), timeline_(timeline) {}

  DeviceId device() const override { return {DeviceKind::kCpu, 0}; }
  CpuStream* cpu() override { return this; }
  void SetStage(const base::Stage& stage) override;
  absl::Status Submit(HostWork& work) override { return work.Run(*this); }
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
  absl::StatusOr<Event> Record() override { return Event(); }
  absl::Status Wait(const Event& event, base::WaitEdge /*edge*/, absl::Duration limit) override {
    return event.Synchronize(limit);
  }
  absl::Status Synchronize() override;

  base::ThreadPool& pool() const { return pool_; }

 private:
  void EndStage();

  base::ThreadPool& pool_;
  const std::string name_;
  CpuTimeline* const timeline_;
  base::Stage stage_;
  double stage_begin_ = -1.0;  // < 0: no stage is being timed
};

// num_threads >= 1 compute threads, the engine's own included.
std::unique_ptr<Device> MakeCpuDevice(int num_threads);

}  // namespace comoe::device
