// What the tests of the emulated accelerator share: rates that make round numbers, and a rig of streams.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/device/emulated/emulated_device.h"
#include "engine/device/emulated/emulated_stream.h"
#include "gtest/gtest.h"

namespace comoe::device {

// The number nearest to so many microseconds, which is what the device's clock gives.
constexpr double Us(double microseconds) { return microseconds / 1e6; }

// 1000 bytes over the link take 1 us, no latency; kernels of so many bytes likewise, on the device and on the
// host; pageable copies take twice that, disks 10 times.
inline EmulatedRates RoundRates() {
  EmulatedRates rates;
  rates.link_bytes_per_second = 1e9;
  rates.link_latency_seconds = 0.0;
  rates.pageable_bytes_per_second = 5e8;
  rates.device_bytes_per_second = 1e9;
  rates.device_flops_per_second = 1e9;
  rates.device_launch_seconds = 0.0;
  rates.host_bytes_per_second = 1e9;
  rates.host_flops_per_second = 1e9;
  rates.host_copy_bytes_per_second = 1e9;
  rates.disk_bytes_per_second = 1e8;
  return rates;
}
inline EmulatedOptions RoundOptions() {
  EmulatedOptions options;
  options.rates = RoundRates();
  return options;
}

// A kernel of that many bytes: a nanosecond each.
inline void Kernel(Stream& stream, double bytes) {
  auto& emulated = dynamic_cast<EmulatedStream&>(stream);
  emulated.BeginKernel();
  emulated.EndKernel({bytes, 0.0, 0});
}

inline Event RecordOn(Stream& stream) { return stream.Record().value(); }

// A device, a stream of each kind (two for copies), and a buffer of each kind.
struct Rig {
  static constexpr std::size_t kBytes = 1 << 20;

  explicit Rig(EmulatedOptions options = RoundOptions()) : device(MakeEmulatedDevice(options).value()) {
    compute = device->CreateStream("compute", StreamKind::kCompute).value();
    copy = device->CreateStream("copy", StreamKind::kCopy).value();
    copy2 = device->CreateStream("copy2", StreamKind::kCopy).value();
    host = device->CreateStream("host", StreamKind::kHost).value();
    slot = device->Allocate(MemoryKind::kDevice, kBytes, 256).value();
    pinned = device->Allocate(MemoryKind::kPinned, kBytes, 256).value();
    pageable = device->Allocate(MemoryKind::kHost, kBytes, 256).value();
    for (Buffer* buffer : {&slot, &pinned, &pageable}) {
      std::memset(buffer->data(), 0, kBytes);
    }
  }

  absl::Status HostToDevice(Stream& stream, std::size_t bytes) {
    return stream.CopyAsync(slot.data(), pinned.data(), bytes);
  }
  absl::Status DeviceToHost(Stream& stream, std::size_t bytes) {
    return stream.CopyAsync(pinned.data(), slot.data(), bytes);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> compute, copy, copy2, host;
  Buffer slot, pinned, pageable;
};

// Keeps what it hears.
class Spans final : public TimelineSink {
 public:
  struct Span {
    std::string lane;
    base::Stage stage;
    std::optional<base::WaitEdge> edge;
    double begin, end;
    std::size_t bytes;
  };
  void Add(absl::string_view lane, const base::Stage& stage, std::optional<base::WaitEdge> edge,
           double begin_seconds, double end_seconds, std::size_t bytes) override {
    spans.push_back({std::string(lane), stage, edge, begin_seconds, end_seconds, bytes});
  }
  std::vector<Span> spans;
};

}  // namespace comoe::device
