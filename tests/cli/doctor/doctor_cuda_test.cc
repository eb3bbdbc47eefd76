// `comoe doctor --device cuda` over the fake plugin, whose copies and kernels take time: sound, and broken on
// purpose.
#include <chrono>
#include <thread>

#include "cli/cuda_options.h"
#include "cli/doctor.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/device/cuda/cuda_stream.h"
#include "gtest/gtest.h"
#include "tests/cli/doctor/doctor_rig.h"
#include "tests/support/fake_cuda.h"
#include "tests/support/fake_cuda_kernels.h"

namespace comoe::cli {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr auto kKernel = std::chrono::milliseconds(20);
constexpr double kBytesPerSecond = kCopyBytes / 0.04;

// A kernel that takes its time and computes nothing.
template <class Args, bool kBlocking>
absl::Status Sleep(const Args& /*args*/, device::Stream& stream) {
  auto& cuda = dynamic_cast<device::CudaStream&>(stream);
  testing::FakeLaunch(cuda.handle(), [] { std::this_thread::sleep_for(kKernel); });
  return kBlocking ? stream.Synchronize() : absl::OkStatus();
}

template <bool kBlocking>
const kernels::KernelTable& SleepingKernels() {
  static const kernels::KernelTable table = [] {
    kernels::KernelTable made = testing::FakeCudaKernels();
    made.expert_ffn = Sleep<kernels::ExpertFfnArgs, kBlocking>;
    made.add = Sleep<kernels::AddArgs, kBlocking>;
    return made;
  }();
  return table;
}

class DoctorCudaTest : public ::testing::Test {
 protected:
  DoctorCudaTest() {
    DoctorOptions& options = rig_.options;
    options.engine.device = "cuda";
    options.engine.device_kernels = &SleepingKernels<false>();
    options.copy_bytes = kCopyBytes;
    testing::PaceFakeCuda(kBytesPerSecond);
  }
  ~DoctorCudaTest() override { testing::PaceFakeCuda(0.0); }

  // As the program makes its device from what the doctor asks for.
  DoctorReport Report() {
    EngineOptions asked = rig_.options.engine;
    if (rig_.options.fault == "one-stream") {
      asked.serial = device::EmulatedSerial::kOneStream;
    }
    rig_.options.engine.make_device = [asked] {
      return device::MakeCudaDevice(testing::FakeCudaPlugin(), CudaOptionsOf(asked));
    };
    return rig_.Report();
  }

  DoctorRig rig_;
};

TEST_F(DoctorCudaTest, ASoundCardOverlaps) {
  const DoctorReport report = Report();
  ExpectFinding(report, "link.pinned", Severity::kOk, "can be page-locked");
  ExpectFinding(report, "overlap.streams", Severity::kOk, "at the same time");
}

TEST_F(DoctorCudaTest, APageableSourceIsNamed) {
  rig_.options.engine.page_lock = "off";
  const DoctorReport report = Report();
  ExpectFinding(report, "link.pinned", Severity::kFailure, "--page-lock off", "leave --page-lock off out");
  ExpectFinding(report, "overlap.streams", Severity::kFailure, "pageable source", "link.pinned");
}

TEST_F(DoctorCudaTest, PageableExpertsAreNamedInTheRun) {
  testing::PaceFakeCuda(0.0);
  rig_.UseModel();
  rig_.options.engine.device_kernels = &testing::FakeCudaKernels();
  rig_.options.engine.policy = "lru";
  rig_.options.engine.expert_cache_fraction = 0.25;
  rig_.options.fault = "refuse-pinned";
  rig_.options.batch = 1;
  rig_.options.warmup_steps = 1;
  rig_.options.steps = 3;
  ExpectFinding(Report(), "run.pageable_source", Severity::kFailure, "pageable memory", "--page-lock");
}

TEST_F(DoctorCudaTest, OneStreamIsNamed) {
  rig_.options.fault = "one-stream";
  ExpectFinding(Report(), "overlap.streams", Severity::kFailure, "one stream", "default stream");
}

TEST_F(DoctorCudaTest, BlockingLaunchesAreNamed) {
  rig_.options.engine.device_kernels = &SleepingKernels<true>();
  ExpectFinding(Report(), "overlap.streams", Severity::kFinding, "blocking launches", "CUDA_LAUNCH_BLOCKING");
}

TEST_F(DoctorCudaTest, WhatACardCannotBreakIsRefused) {
  for (const char* fault : {"half-rate", "failing-copies", "blocking-launches", "gremlins"}) {
    rig_.options.fault = fault;
    EXPECT_EQ(Examine(rig_.options).status().code(), absl::StatusCode::kInvalidArgument) << fault;
  }
}

}  // namespace
}  // namespace comoe::cli
