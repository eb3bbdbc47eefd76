// The host as a device: buffers are host memory, and a stream runs its work at once on the calling thread and
// the device's thread pool. So every event has happened when Record returns.
#pragma once

#include <memory>

#include "engine/base/thread_pool.h"
#include "engine/device/device.h"

namespace comoe::device {

class CpuStream final : public Stream {
 public:
  // `pool` outlives the stream; streams of one device share it and are used by one thread.
  explicit CpuStream(base::ThreadPool& pool) : pool_(pool) {}

  DeviceId device() const override { return {DeviceKind::kCpu, 0}; }
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override;
  absl::StatusOr<Event> Record() override { return Event(); }
  absl::Status Wait(const Event& event) override { return event.Synchronize(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  base::ThreadPool& pool() const { return pool_; }

 private:
  base::ThreadPool& pool_;
};

// num_threads >= 1 compute threads, the engine's own included.
std::unique_ptr<Device> MakeCpuDevice(int num_threads);

// The CPU stream behind `stream`, or nullptr when it belongs to another kind of device.
CpuStream* AsCpuStream(Stream& stream);

}  // namespace comoe::device
