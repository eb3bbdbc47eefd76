#include "engine/device/emulated/real_device.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/cpu/cpu_device.h"
#include "engine/device/emulated/describe.h"
#include "engine/device/emulated/emulated_memory.h"
#include "engine/device/emulated/real_clock.h"
#include "engine/device/emulated/real_stream.h"

namespace comoe::device {
namespace {

class RealDevice final : public Device {
 public:
  explicit RealDevice(EmulatedOptions options)
      : options_(std::move(options)),
        host_(MakeCpuDevice(1)),
        memory_(std::make_shared<EmulatedMemory>(
            *host_,
            EmulatedMemory::Limits{options_.device_bytes, options_.pinned_bytes, options_.refuse_pinned})),
        clock_(options_, *memory_) {}

  DeviceId id() const override { return {DeviceKind::kEmulated, 0}; }
  std::string Describe() const override { return DescribeEmulated(options_); }
  MemoryInfo memory(MemoryKind kind) const override { return memory_->Info(kind); }
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) override {
    return memory_->Allocate(kind, bytes, alignment);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name, StreamKind kind) override {
    const LaneId lane = clock_.AddLane(name, kind);
    if (kind == StreamKind::kCompute) {
      return std::make_unique<InlineStream>(clock_, lane, options_.threads, nullptr);
    }
    return std::make_unique<QueuedStream>(clock_, lane);
  }
  void Notify(const Event& event, EventListener& listener, std::uint64_t tag) override {
    clock_.Notify(event, listener, tag);
  }
  double Now() const override { return ToSeconds(clock_.Now()); }
  DeviceTimes times() const override { return clock_.times(); }
  void SetTimeline(TimelineSink* sink) override { clock_.timeline().SetSink(sink); }

 private:
  const EmulatedOptions options_;
  const std::unique_ptr<Device> host_;  // gives memory
  const std::shared_ptr<EmulatedMemory> memory_;
  mutable RealClock clock_;
};

}  // namespace

std::unique_ptr<Device> MakeRealDevice(EmulatedOptions options) {
  return std::make_unique<RealDevice>(std::move(options));
}

}  // namespace comoe::device
