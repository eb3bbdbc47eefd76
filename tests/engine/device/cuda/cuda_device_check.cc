// Checks the CUDA device on a machine with a GPU, and measures what its parts cost. Needs no test framework:
// copy it there with libcomoe_cuda.so. Usage: cuda_device_check [PLUGIN]
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/device/cuda/cuda_loader.h"
#include "tests/engine/device/cuda/device_checks.h"

namespace comoe {
namespace {

using device::Buffer;
using device::Device;
using device::Event;
using device::MemoryKind;
using device::StreamKind;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Nothing final : public device::Stream::HostWork {
 public:
  absl::Status Run(device::Stream& /*stream*/) override { return absl::OkStatus(); }
};

// Seconds of `run`, median of many.
template <typename Run>
double Cost(Device& device, const Run& run) {
  constexpr int kRounds = 200;
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    const double begin = device.Now();
    run();
    seconds.push_back(device.Now() - begin);
  }
  return Median(std::move(seconds));
}

void MeasureLatencies(Device& device) {
  const auto compute = *device.CreateStream("compute", StreamKind::kCompute);
  const auto copy = *device.CreateStream("copy", StreamKind::kCopy);
  const auto host = *device.CreateStream("host", StreamKind::kHost);
  const Buffer pinned = *device.Allocate(MemoryKind::kPinned, 4096, 256);
  const Buffer on_device = *device.Allocate(MemoryKind::kDevice, 4096, 256);
  Nothing nothing;
  const auto print = [&](const char* what, double seconds) {
    std::printf("%-52s %8.2f us\n", what, seconds * 1e6);
  };
  print("record an event", Cost(device, [&] { (void)compute->Record(); }));
  (void)compute->Synchronize();
  print("record and synchronise", Cost(device, [&] { (void)compute->Record()->Synchronize(); }));
  print("synchronise an idle stream", Cost(device, [&] { (void)compute->Synchronize(); }));
  print("4 KiB to the host, event, synchronise", Cost(device, [&] {
          (void)copy->CopyAsync(pinned.data(), on_device.data(), 4096);
          (void)copy->Record()->Synchronize();
        }));
  print("host work and back on the host", Cost(device, [&] {
          (void)host->Submit(nothing);
          (void)host->Record()->Synchronize();
        }));
  print("device to host work to device", Cost(device, [&] {
          const Event ready = *compute->Record();
          (void)host->Wait(ready, base::WaitEdge::kRows, absl::Seconds(1));
          (void)host->Submit(nothing);
          const Event worked = *host->Record();
          (void)copy->Wait(worked, base::WaitEdge::kHostLane);
          (void)copy->CopyAsync(on_device.data(), pinned.data(), 4096);
          const Event back = *copy->Record();
          (void)compute->Wait(back, base::WaitEdge::kHostLane);
          (void)compute->Synchronize();
        }));
  print("times()", Cost(device, [&] { (void)device.times(); }));
}

void MeasureCopies(Device& device) {
  constexpr std::size_t kMost = std::size_t{256} << 20;
  const Buffer pinned = *device.Allocate(MemoryKind::kPinned, kMost, 256);
  const Buffer pageable = *device.Allocate(MemoryKind::kHost, kMost, 256);
  const Buffer on_device = *device.Allocate(MemoryKind::kDevice, kMost, 256);
  const auto copy = *device.CreateStream("copy", StreamKind::kCopy);
  std::fill_n(pinned.data(), kMost, std::byte{3});
  std::fill_n(pageable.data(), kMost, std::byte{5});
  std::printf("%10s %12s %12s %12s  GB/s\n", "bytes", "to device", "to host", "pageable");
  for (std::size_t bytes = 64 << 10; bytes <= kMost; bytes *= 4) {
    const auto rate = [&](std::byte* target, const std::byte* source) {
      std::vector<double> seconds;
      for (int i = 0; i < 9; ++i) {
        const Event begin = *copy->Record();
        (void)copy->CopyAsync(target, source, bytes);
        const Event end = *copy->Record();
        (void)copy->Synchronize();
        seconds.push_back(end.state()->Seconds() - begin.state()->Seconds());
      }
      return static_cast<double>(bytes) / Median(std::move(seconds)) / 1e9;
    };
    std::printf("%10zu %12.1f %12.1f %12.1f\n", bytes, rate(on_device.data(), pinned.data()),
                rate(pinned.data(), on_device.data()), rate(on_device.data(), pageable.data()));
  }
}

int Main(const std::string& plugin) {
  absl::StatusOr<std::unique_ptr<Device>> device = device::OpenCudaDevice(plugin, {});
  if (!device.ok()) {
    std::printf("no device: %s\n", std::string(device.status().message()).c_str());
    return 2;
  }
  std::printf("%s\n", (*device)->Describe().c_str());
  int failed = 0;
  for (const testing::DeviceCheck& check : testing::DeviceChecks()) {
    const absl::Status status = check.run(**device);
    std::printf("%-40s %s\n", std::string(check.name).c_str(),
                status.ok() ? "ok" : status.ToString().c_str());
    failed += status.ok() ? 0 : 1;
  }
  MeasureLatencies(**device);
  MeasureCopies(**device);
  std::printf("%d checks failed\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace comoe

int main(int argc, char** argv) { return comoe::Main(argc > 1 ? argv[1] : ""); }
