#include "engine/device/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "engine/device/cuda/cuda_loader.h"
#include "tests/engine/device/cuda/device_checks.h"
#include "tests/support/fake_cuda.h"

namespace comoe::device {
namespace {

std::unique_ptr<Device> FakeDevice() {
  absl::StatusOr<std::unique_ptr<Device>> made = MakeCudaDevice(testing::FakeCudaPlugin(), {});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

TEST(CudaDevice, DoesWhatACudaDeviceMust) {
  const std::unique_ptr<Device> device = FakeDevice();
  for (const testing::DeviceCheck& check : testing::DeviceChecks()) {
    const absl::Status status = check.run(*device);
    EXPECT_TRUE(status.ok()) << check.name << ": " << status;
  }
}

TEST(CudaDevice, SteadyWorkAllocatesNothing) {
  const std::unique_ptr<Device> device = FakeDevice();
  const auto compute = *device->CreateStream("compute", StreamKind::kCompute);
  const auto copy = *device->CreateStream("copy", StreamKind::kCopy);
  const Buffer pinned = *device->Allocate(MemoryKind::kPinned, 4096, 256);
  const Buffer on_device = *device->Allocate(MemoryKind::kDevice, 4096, 256);
  const std::size_t before = testing::FakeCudaAllocations();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(copy->CopyAsync(on_device.data(), pinned.data(), 4096).ok());
    const Event event = *copy->Record();
    ASSERT_TRUE(compute->Wait(event, base::WaitEdge::kDemandCopy).ok());
    ASSERT_TRUE(compute->Synchronize().ok());
  }
  EXPECT_EQ(testing::FakeCudaAllocations(), before);
}

// Without this the engine's tests over the fake would show nothing.
TEST(CudaDeviceDeathTest, TheHostCannotTouchTheFakesDeviceMemory) {
  const std::unique_ptr<Device> device = FakeDevice();
  const Buffer on_device = *device->Allocate(MemoryKind::kDevice, 4096, 256);
  EXPECT_DEATH(*on_device.data() = std::byte{1}, "");
  const testing::DeviceAccess access;
  *on_device.data() = std::byte{1};
}

// An illegal address leaves a CUDA context unusable: everything fails from then on, and the device says so.
TEST(CudaDevice, APoisonedContextIsInternalForGood) {
  const std::unique_ptr<Device> device = FakeDevice();
  const auto stream = *device->CreateStream("compute", StreamKind::kCompute);
  const Event before = *stream->Record();
  EXPECT_TRUE(device->health().ok());
  testing::FailFakeCuda(700);
  const absl::Status failed = stream->Synchronize();
  testing::FailFakeCuda(0);
  EXPECT_TRUE(absl::IsInternal(failed)) << failed;
  EXPECT_NE(failed.message().find("cudaStreamSynchronize: cudaErrorFake (an illegal address)"),
            absl::string_view::npos)
      << failed;
  EXPECT_TRUE(absl::IsInternal(device->health()));
  EXPECT_TRUE(absl::IsInternal(before.Synchronize()));
}

// Whatever the driver answers when asked whether an event has happened: what cannot be known has not succeeded.
TEST(CudaDevice, AnEventThatCannotBeAskedForIsNotDoneWell) {
  constexpr int kNoPoisonByItself = 4;
  const std::unique_ptr<Device> device = FakeDevice();
  const auto stream = *device->CreateStream("compute", StreamKind::kCompute);
  const Event event = *stream->Record();
  testing::FailFakeCuda(kNoPoisonByItself);
  EXPECT_TRUE(event.Done()) << "nobody waits for ever";
  testing::FailFakeCuda(0);
  EXPECT_TRUE(absl::IsInternal(event.Synchronize())) << event.Synchronize();
  EXPECT_TRUE(absl::IsInternal(device->health())) << device->health();
}

TEST(CudaLoader, SaysInOneLineWhyThereIsNoDevice) {
  for (const std::string& path : {std::string(""), std::string("/nowhere/libcomoe_cuda.so"),
                                  std::string("/proc/self/exe"), std::string("libm.so.6")}) {
    const absl::Status status = OpenCudaDevice(path, {}).status();
    if (path.empty() && status.ok()) {
      continue;  // this machine has a GPU
    }
    EXPECT_TRUE(absl::IsUnavailable(status)) << path << ": " << status;
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
    EXPECT_FALSE(status.message().empty());
  }
  testing::FailFakeCuda(35);
  const absl::Status no_driver = MakeCudaDevice(testing::FakeCudaPlugin(), {}).status();
  testing::FailFakeCuda(0);
  EXPECT_TRUE(absl::IsUnavailable(no_driver)) << no_driver;
  const absl::Status no_such = MakeCudaDevice(testing::FakeCudaPlugin(), {.ordinal = 3}).status();
  EXPECT_TRUE(absl::IsUnavailable(no_such)) << no_such;
}

}  // namespace
}  // namespace comoe::device
