// The emulated accelerator on its virtual clock: when things happen, when bytes move, what faults do.
#include "engine/device/emulated/emulated_device.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/device/emulated_test_util.h"

namespace comoe::device {
namespace {

using base::CopyDirection;
using base::WaitEdge;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(EmulatedDeviceTest, SaysWhatItIs) {
  const Rig rig;
  EXPECT_EQ(rig.device->id(), (DeviceId{DeviceKind::kEmulated, 0}));
  EXPECT_THAT(rig.device->Describe(), HasSubstr("emulated accelerator, virtual clock: times are simulated"));
}

TEST(EmulatedDeviceTest, PresetsByName) {
  for (const absl::string_view name : PresetNames()) {
    EmulatedOptions options;
    options.rates = PresetRates(name).value();
    EXPECT_TRUE(MakeEmulatedDevice(options).ok());
  }
  EXPECT_EQ(PresetRates("pcie4x16")->link_bytes_per_second,
            2.0 * PresetRates("pcie4x8")->link_bytes_per_second);
  const absl::Status unknown = PresetRates("pcie9x1").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("pcie3x16, pcie4x16, pcie5x16"));
}

TEST(EmulatedDeviceTest, RefusesWhatIsNoRate) {
  EmulatedOptions options;
  options.rates.disk_bytes_per_second = 0.0;
  EXPECT_THAT(std::string(MakeEmulatedDevice(options).status().message()),
              HasSubstr("disk_bytes_per_second is 0"));
  options = {};
  options.rates.link_latency_seconds = -1.0;
  EXPECT_EQ(MakeEmulatedDevice(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EmulatedDeviceTest, ACopyTakesLatencyAndItsBytes) {
  EmulatedOptions options = RoundOptions();
  options.rates.link_latency_seconds = Us(10);
  Rig rig(options);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 5000).ok());
  const Event done = RecordOn(*rig.copy);
  EXPECT_FALSE(done.Done());
  EXPECT_EQ(rig.device->Now(), 0.0);
  EXPECT_TRUE(done.Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(15));
  EXPECT_EQ(done.state()->Seconds(), Us(15));
  EXPECT_EQ(rig.device->times().copy_busy[CopyDirection::kHostToDevice], Us(15));
}

TEST(EmulatedDeviceTest, KernelsTakeTheSlowerOfBytesAndFlops) {
  EmulatedOptions options = RoundOptions();
  options.rates.device_launch_seconds = Us(2);
  Rig rig(options);
  auto& compute = dynamic_cast<EmulatedStream&>(*rig.compute);
  compute.EndKernel({3000, 1000, 0});
  compute.EndKernel({1000, 4000, 2});
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(2 + 3 + 2 + 4));
}

TEST(EmulatedDeviceTest, OneStreamTakesWorkInOneOrder) {
  EmulatedOptions options = RoundOptions();
  options.serial = EmulatedSerial::kOneStream;
  Rig rig(options);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 5000).ok());
  dynamic_cast<EmulatedStream&>(*rig.compute).EndKernel({3000, 1000, 0});
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(5 + 3));
  options.real_clock = true;
  EXPECT_EQ(MakeEmulatedDevice(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EmulatedDeviceTest, BlockingLaunchesHoldUpTheCaller) {
  EmulatedOptions options = RoundOptions();
  options.serial = EmulatedSerial::kBlockingLaunches;
  Rig rig(options);
  dynamic_cast<EmulatedStream&>(*rig.compute).EndKernel({3000, 1000, 0});
  EXPECT_EQ(rig.device->Now(), Us(3));
}

TEST(EmulatedDeviceTest, StudiesFixTimesByKernelAndExpert) {
  EmulatedOptions options = RoundOptions();
  options.rates.device_seconds_per_expert = Us(7);
  options.rates.host_seconds_per_expert = Us(100);
  options.rates.dense_seconds_per_kernel = Us(1);
  Rig rig(options);
  dynamic_cast<EmulatedStream&>(*rig.compute).EndKernel({1e9, 1e9, 3});
  dynamic_cast<EmulatedStream&>(*rig.compute).EndKernel({1e9, 1e9, 0});
  dynamic_cast<EmulatedStream&>(*rig.host).EndKernel({1e9, 1e9, 2});
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(22));
  ASSERT_TRUE(rig.host->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(200));
  EXPECT_EQ(rig.device->times().host_lane, Us(200));
}

TEST(EmulatedDeviceTest, AWaitIsAStallByItsEdge) {
  Rig rig;
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 9000).ok());
  Kernel(*rig.compute, 4000);
  ASSERT_TRUE(rig.compute->Wait(RecordOn(*rig.copy), WaitEdge::kPrefetchCopy).ok());
  Kernel(*rig.compute, 1000);
  EXPECT_EQ(rig.device->Now(), 0.0);  // the caller was not held up
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  const DeviceTimes times = rig.device->times();
  EXPECT_EQ(rig.device->Now(), Us(10));
  EXPECT_EQ(times.compute, Us(5));
  EXPECT_EQ(times.stalled[WaitEdge::kPrefetchCopy], Us(5));
  EXPECT_EQ(times.stalled.Sum(), Us(5));
  EXPECT_EQ(times.copy_overlapped[CopyDirection::kHostToDevice], Us(4));
}

// n experts copied and computed. One slot: copy and kernel wait for each other. n slots: only the kernels
// wait, and the shorter part is hidden but for its first or last.
TEST(EmulatedDeviceTest, SerialAndPipelined) {
  constexpr int kN = 20;
  for (const double copy_bytes : {2000.0, 5000.0}) {
    constexpr double kKernelBytes = 3000.0;
    for (const bool pipelined : {false, true}) {
      Rig rig;
      Event used;
      for (int i = 0; i < kN; ++i) {
        if (!pipelined) {
          ASSERT_TRUE(rig.copy->Wait(used, WaitEdge::kSlotFree).ok());
        }
        ASSERT_TRUE(rig.HostToDevice(*rig.copy, static_cast<std::size_t>(copy_bytes)).ok());
        ASSERT_TRUE(rig.compute->Wait(RecordOn(*rig.copy), WaitEdge::kDemandCopy).ok());
        Kernel(*rig.compute, kKernelBytes);
        used = RecordOn(*rig.compute);
      }
      ASSERT_TRUE(rig.compute->Synchronize().ok());
      const double c = copy_bytes;
      const double w = kKernelBytes;
      const double expected = pipelined ? std::max(kN * c + w, c + kN * w) : kN * (c + w);
      EXPECT_DOUBLE_EQ(rig.device->Now(), expected * 1e-9) << copy_bytes << (pipelined ? " pipelined" : "");
      const DeviceTimes times = rig.device->times();
      EXPECT_DOUBLE_EQ(times.compute + times.stalled.Sum(), rig.device->Now());
    }
  }
}

TEST(EmulatedDeviceTest, DirectionsAreApartAndStreamsShareOne) {
  Rig rig;
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 5000).ok());
  ASSERT_TRUE(rig.HostToDevice(*rig.copy2, 1000).ok());
  const Event second = RecordOn(*rig.copy2);
  const std::unique_ptr<Stream> back = rig.device->CreateStream("back", StreamKind::kCopy).value();
  ASSERT_TRUE(rig.DeviceToHost(*back, 5500).ok());
  ASSERT_TRUE(back->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(5.5));
  EXPECT_EQ(rig.device->times().copy_busy[CopyDirection::kHostToDevice], Us(5.5));  // one partly done
  EXPECT_FALSE(second.Done());
  ASSERT_TRUE(second.Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(6));
}

TEST(EmulatedDeviceTest, ACopyThatHasToWaitLeavesTheLinkToOthers) {
  Rig rig;
  Kernel(*rig.host, 5000);
  const Event computed = RecordOn(*rig.host);
  ASSERT_TRUE(rig.copy->Wait(computed, base::WaitEdge::kHostLane).ok());
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());  // from 5 us on
  const Event result = RecordOn(*rig.copy);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy2, 3000).ok());  // at once
  const Event first = RecordOn(*rig.copy2);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy2, 3000).ok());  // does not end by 5 us: after the result
  const Event second = RecordOn(*rig.copy2);
  ASSERT_TRUE(second.Synchronize().ok());
  EXPECT_EQ(first.state()->Seconds(), Us(3));
  EXPECT_EQ(result.state()->Seconds(), Us(6));
  EXPECT_EQ(second.state()->Seconds(), Us(9));
}

TEST(EmulatedDeviceTest, BytesMoveWhenTheyMayBeSeen) {
  Rig rig;
  const auto first_byte = [&] { return std::to_integer<int>(rig.slot.data()[0]); };
  rig.pinned.data()[0] = std::byte{1};
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  EXPECT_EQ(first_byte(), 0);
  const Event done = RecordOn(*rig.copy);
  Kernel(*rig.compute, 50'000);  // long after the copy, but nobody waited for it
  EXPECT_EQ(first_byte(), 0);
  ASSERT_TRUE(rig.compute->Wait(done, WaitEdge::kDemandCopy).ok());
  EXPECT_EQ(first_byte(), 1);

  // When the clock passes the end, and not before.
  rig.pinned.data()[0] = std::byte{2};
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 60'000).ok());
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(50));
  EXPECT_EQ(first_byte(), 1);
  Kernel(*rig.compute, 11'000);
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(first_byte(), 2);

  // An event behind a later copy stands for the earlier one too; the source is read when the bytes move.
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  ASSERT_TRUE(rig.copy->CopyAsync(rig.slot.data() + 2000, rig.pinned.data(), 1000).ok());
  rig.pinned.data()[0] = std::byte{3};
  ASSERT_TRUE(rig.copy2->Wait(RecordOn(*rig.copy), WaitEdge::kStaged).ok());
  EXPECT_EQ(first_byte(), 3);
  EXPECT_EQ(rig.slot.data()[2000], std::byte{3});
}

TEST(EmulatedDeviceTest, AStreamSeesItsOwnCopies) {
  Rig rig;
  rig.pinned.data()[0] = std::byte{1};
  ASSERT_TRUE(rig.HostToDevice(*rig.compute, 1000).ok());
  EXPECT_EQ(rig.slot.data()[0], std::byte{0});
  Kernel(*rig.compute, 1000);
  EXPECT_EQ(rig.slot.data()[0], std::byte{1});
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->times().compute, Us(2));
}

TEST(EmulatedDeviceTest, APageableCopyIsSlowAndHoldsUpItsCaller) {
  Rig rig;
  std::vector<std::byte> plain(1000, std::byte{7});
  for (const std::byte* source :
       {std::as_const(rig.pageable).data(), static_cast<std::byte*>(plain.data())}) {
    const double before = rig.device->Now();
    ASSERT_TRUE(rig.copy->CopyAsync(rig.slot.data(), source, 1000).ok());
    EXPECT_DOUBLE_EQ(rig.device->Now() - before, Us(2));
    EXPECT_EQ(rig.slot.data()[0], source[0]);
  }
}

TEST(EmulatedDeviceTest, CopiesWithinHostMemoryLeaveTheLinkAlone) {
  Rig rig;
  ASSERT_TRUE(rig.host->CopyAsync(rig.pinned.data(), rig.pageable.data(), 8000).ok());
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 3000).ok());
  ASSERT_TRUE(rig.copy->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(3));
  ASSERT_TRUE(rig.host->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(8));
  EXPECT_EQ(rig.device->times().copy_busy[CopyDirection::kHostToHost], Us(8));
  // Within the device: read and written at its rate.
  ASSERT_TRUE(rig.copy->CopyAsync(rig.slot.data(), rig.slot.data() + 5000, 1000).ok());
  ASSERT_TRUE(rig.copy->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(10));
}

class Expert final : public Stream::HostWork {
 public:
  absl::Status Run(Stream& stream) override {
    stream.CountDiskRead(100);  // 1 us
    Kernel(stream, 4000);
    ran = true;
    return status;
  }
  absl::Status status;
  bool ran = false;
};

TEST(EmulatedDeviceTest, HostWorkRunsBesideTheDevice) {
  Rig rig;
  Expert expert;
  EXPECT_EQ(rig.copy->Submit(expert).code(), absl::StatusCode::kUnimplemented);
  Kernel(*rig.compute, 2000);
  ASSERT_TRUE(rig.host->Wait(RecordOn(*rig.compute), WaitEdge::kRows).ok());
  ASSERT_TRUE(rig.host->Submit(expert).ok());
  EXPECT_TRUE(expert.ran);
  Kernel(*rig.compute, 1000);
  ASSERT_TRUE(rig.compute->Wait(RecordOn(*rig.host), WaitEdge::kHostLane).ok());
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(7));
  const DeviceTimes times = rig.device->times();
  EXPECT_EQ(times.host_lane, Us(4));
  EXPECT_EQ(times.copy_busy[CopyDirection::kDiskToHost], Us(1));
  EXPECT_EQ(times.stalled[WaitEdge::kHostLane], Us(4));
  EXPECT_EQ(times.stalled.Sum(), Us(4));  // the host lane's own waits are not the device's

  expert.status = absl::InternalError("broken");
  ASSERT_TRUE(rig.host->Submit(expert).ok());
  EXPECT_EQ(RecordOn(*rig.host).Synchronize(), expert.status);
  EXPECT_EQ(rig.host->Synchronize(), expert.status);
  EXPECT_TRUE(rig.host->Synchronize().ok());
}

// Copies of 1 us each, with the given fate by index.
EmulatedOptions WithFaults(std::vector<CopyFault> faults) {
  EmulatedOptions options = RoundOptions();
  options.copy_faults = [faults = std::move(faults)](const CopyRequest& request) {
    return request.index < faults.size() ? faults[request.index] : CopyFault::None();
  };
  return options;
}

TEST(EmulatedFaultTest, AFailedCopyFailsTheNextEventAlone) {
  const absl::Status broken = absl::DataLossError("broken");
  Rig rig(WithFaults({CopyFault::Fail(broken)}));
  rig.pinned.data()[0] = std::byte{1};
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  const Event failed = RecordOn(*rig.copy);
  ASSERT_TRUE(rig.copy->CopyAsync(rig.slot.data() + 1000, rig.pinned.data(), 1000).ok());
  const Event good = RecordOn(*rig.copy);
  EXPECT_EQ(rig.compute->Wait(failed, WaitEdge::kDemandCopy), broken);
  EXPECT_TRUE(rig.compute->Wait(good, WaitEdge::kDemandCopy).ok());
  EXPECT_EQ(rig.slot.data()[0], std::byte{0});
  EXPECT_EQ(rig.slot.data()[1000], std::byte{1});
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(2));
  EXPECT_TRUE(failed.Done());
  EXPECT_EQ(failed.Synchronize(), broken);
  EXPECT_EQ(rig.copy->Synchronize(), broken);
  EXPECT_TRUE(rig.copy->Synchronize().ok());
}

TEST(EmulatedFaultTest, AHungCopyHoldsUpNobodyElse) {
  Rig rig(WithFaults({CopyFault::Hang()}));
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  const Event never = RecordOn(*rig.copy);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  const Event good = RecordOn(*rig.copy);
  EXPECT_EQ(rig.compute->Wait(never, WaitEdge::kDemandCopy, absl::Microseconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig.compute->Wait(never, WaitEdge::kDemandCopy).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(5));
  EXPECT_EQ(rig.device->times().stalled[WaitEdge::kDemandCopy], Us(5));
  EXPECT_TRUE(good.Done());
  EXPECT_EQ(good.state()->Seconds(), Us(1));
  EXPECT_FALSE(never.Done());
  EXPECT_EQ(never.Synchronize(absl::Microseconds(3)).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig.device->Now(), Us(8));
  EXPECT_EQ(never.Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(rig.copy->Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(rig.copy->Synchronize().ok());
}

TEST(EmulatedFaultTest, ALateCopyHoldsUpItsStreamAndNotTheLink) {
  Rig rig(WithFaults({CopyFault::Late(Us(10))}));
  rig.pinned.data()[0] = std::byte{1};
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  const Event late = RecordOn(*rig.copy);
  ASSERT_TRUE(rig.copy2->CopyAsync(rig.slot.data() + 1000, rig.pinned.data(), 1000).ok());
  const Event other = RecordOn(*rig.copy2);
  EXPECT_EQ(rig.compute->Wait(late, WaitEdge::kDemandCopy, absl::Microseconds(4)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig.slot.data()[0], std::byte{0});
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(4));
  EXPECT_TRUE(other.Done());
  EXPECT_EQ(other.state()->Seconds(), Us(2));
  ASSERT_TRUE(late.Synchronize().ok());
  EXPECT_EQ(rig.device->Now(), Us(11));
  EXPECT_EQ(rig.slot.data()[0], std::byte{1});
}

TEST(EmulatedFaultTest, FaultsSeeWhatIsCopied) {
  std::vector<CopyRequest> requests;
  EmulatedOptions options = RoundOptions();
  options.copy_faults = [&](const CopyRequest& request) {
    requests.push_back(request);
    return CopyFault::None();
  };
  Rig rig(options);
  base::Stage stage;
  stage.kind = base::StageKind::kCopy;
  stage.layer = 3;
  rig.copy->SetStage(stage);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 100).ok());
  ASSERT_TRUE(rig.DeviceToHost(*rig.copy2, 200).ok());
  ASSERT_TRUE(rig.host->CopyAsync(rig.pinned.data(), rig.pageable.data(), 300).ok());
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].stage.layer, 3);
  EXPECT_EQ(requests[1].direction, CopyDirection::kDeviceToHost);
  EXPECT_EQ(requests[2].direction, CopyDirection::kHostToHost);
  EXPECT_EQ(requests[2].bytes, 300U);
  EXPECT_EQ(requests[2].index, 2U);
}

TEST(EmulatedMemoryTest, LimitsAreHeld) {
  EmulatedOptions options = RoundOptions();
  options.device_bytes = 3 << 20;
  options.pinned_bytes = 2 << 20;
  const std::unique_ptr<Device> device = MakeEmulatedDevice(options).value();
  absl::StatusOr<Buffer> first = device->Allocate(MemoryKind::kDevice, 2 << 20, 4096);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->kind(), MemoryKind::kDevice);
  EXPECT_EQ(device->memory(MemoryKind::kDevice).free_bytes, std::uint64_t{1} << 20);
  const absl::Status refused = device->Allocate(MemoryKind::kDevice, 2 << 20, 64).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("no 2.0 MiB of emulated device memory (1.0 MiB of 3.0"));
  EXPECT_EQ(device->Allocate(MemoryKind::kPinned, 3 << 20, 64).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device->Allocate(MemoryKind::kHost, 8 << 20, 64).ok());
  *first = Buffer();
  EXPECT_TRUE(device->Allocate(MemoryKind::kDevice, 3 << 20, 64).ok());

  options = RoundOptions();
  options.refuse_pinned = true;
  EXPECT_EQ(MakeEmulatedDevice(options).value()->Allocate(MemoryKind::kPinned, 1, 64).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// Starts the next copy when it hears of the last.
class Chain final : public EventListener {
 public:
  Chain(Rig& rig, int copies) : rig_(rig), left_(copies) {}
  void Start(std::uint64_t tag) {
    ASSERT_TRUE(rig_.HostToDevice(*rig_.copy, 1000).ok());
    rig_.device->Notify(RecordOn(*rig_.copy), *this, tag);
  }
  void OnEvent(std::uint64_t tag) override {
    tags.push_back(tag);
    times.push_back(rig_.device->Now());
    if (--left_ > 0) {
      Start(tag + 1);
    }
  }
  std::vector<std::uint64_t> tags;
  std::vector<double> times;

 private:
  Rig& rig_;
  int left_;
};

TEST(EmulatedNotifyTest, ListenersRunAtTheTimeOfTheirEvent) {
  Rig rig;
  Chain chain(rig, 4);
  chain.Start(10);
  Kernel(*rig.compute, 3500);
  EXPECT_TRUE(chain.tags.empty());
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_THAT(chain.tags, ElementsAre(10, 11, 12));
  EXPECT_THAT(chain.times, ElementsAre(Us(1), Us(2), Us(3)));
  EXPECT_EQ(rig.device->Now(), Us(3.5));
  EXPECT_EQ(rig.device->times().copy_busy[CopyDirection::kHostToDevice], Us(3.5));
  ASSERT_TRUE(rig.copy->Synchronize().ok());
  EXPECT_THAT(chain.tags, ElementsAre(10, 11, 12, 13));
}

class Order final : public EventListener {
 public:
  void OnEvent(std::uint64_t tag) override { tags.push_back(tag); }
  std::vector<std::uint64_t> tags;
};

TEST(EmulatedNotifyTest, ListenersRunInOrderOfTime) {
  Rig rig(WithFaults({CopyFault::Hang()}));
  Order order;
  rig.device->Notify(Event(), order, 0);  // has happened: at once
  EXPECT_THAT(order.tags, ElementsAre(0));
  ASSERT_TRUE(rig.HostToDevice(*rig.copy2, 10).ok());
  rig.device->Notify(RecordOn(*rig.copy2), order, 99);  // never
  Kernel(*rig.compute, 5000);
  rig.device->Notify(RecordOn(*rig.compute), order, 5);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  const Event copied = RecordOn(*rig.copy);
  rig.device->Notify(copied, order, 1);
  rig.device->Notify(copied, order, 2);
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_THAT(order.tags, ElementsAre(0, 1, 2, 5));
  rig.device->Notify(copied, order, 6);
  EXPECT_THAT(order.tags, ElementsAre(0, 1, 2, 5, 6));
}

// A listener whose copy is pageable is held up, and hears of the next event afterwards, never within.
class SlowListener final : public EventListener {
 public:
  explicit SlowListener(Rig& rig) : rig_(rig) {}
  void OnEvent(std::uint64_t /*tag*/) override {
    EXPECT_FALSE(inside_);
    inside_ = true;
    ASSERT_TRUE(rig_.copy2->CopyAsync(rig_.slot.data() + 5000, rig_.pageable.data(), 1000).ok());
    rig_.device->Notify(RecordOn(*rig_.copy2), order, 7);  // has happened
    times.push_back(rig_.device->Now());
    inside_ = false;
  }
  Order order;
  std::vector<double> times;

 private:
  Rig& rig_;
  bool inside_ = false;
};

TEST(EmulatedNotifyTest, AListenerIsNeverCalledWithinAnother) {
  Rig rig;
  SlowListener slow(rig);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
    rig.device->Notify(RecordOn(*rig.copy), slow, 0);
  }
  Kernel(*rig.compute, 1500);
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  EXPECT_THAT(slow.times, ElementsAre(Us(4), Us(6)));  // from 2 us on, when the link is free
  EXPECT_EQ(slow.order.tags.size(), 2U);
}

TEST(EmulatedTimelineTest, HearsKernelsByStageCopiesAndStalls) {
  Rig rig;
  Spans sink;
  rig.device->SetTimeline(&sink);
  base::Stage attention;
  attention.kind = base::StageKind::kAttention;
  attention.layer = 1;
  rig.compute->SetStage(attention);
  Kernel(*rig.compute, 1000);
  Kernel(*rig.compute, 1000);
  base::Stage expert;
  expert.kind = base::StageKind::kExpert;
  rig.compute->SetStage(expert);
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 5000).ok());
  ASSERT_TRUE(rig.compute->Wait(RecordOn(*rig.copy), WaitEdge::kDemandCopy).ok());
  Kernel(*rig.compute, 1000);
  ASSERT_TRUE(rig.compute->Synchronize().ok());
  rig.device->SetTimeline(nullptr);
  Kernel(*rig.compute, 1000);
  ASSERT_TRUE(rig.compute->Synchronize().ok());

  ASSERT_EQ(sink.spans.size(), 4U);
  EXPECT_EQ(sink.spans[0].lane, "compute");
  EXPECT_EQ(sink.spans[0].stage.kind, base::StageKind::kAttention);
  EXPECT_EQ(sink.spans[0].end, Us(2));
  EXPECT_EQ(sink.spans[1].lane, "copy");
  EXPECT_EQ(sink.spans[1].bytes, 5000U);
  EXPECT_EQ(sink.spans[2].edge, WaitEdge::kDemandCopy);
  EXPECT_EQ(sink.spans[2].begin, Us(2));
  EXPECT_EQ(sink.spans[2].end, Us(5));
  EXPECT_EQ(sink.spans[3].stage.kind, base::StageKind::kExpert);
  EXPECT_EQ(sink.spans[3].end, Us(6));
}

// A stream, and then the device, may go while work is queued; events outlive their stream.
TEST(EmulatedDeviceTest, StreamsMayGoWithWorkQueued) {
  Rig rig;
  {
    const std::unique_ptr<Stream> gone = rig.device->CreateStream("gone", StreamKind::kCopy).value();
    const Buffer source = rig.device->Allocate(MemoryKind::kPinned, 1000, 64).value();
    ASSERT_TRUE(gone->CopyAsync(rig.slot.data(), source.data(), 1000).ok());
    const Event done = RecordOn(*gone);
  }
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
  const Event done = RecordOn(*rig.copy);
  rig.copy.reset();
  EXPECT_TRUE(done.Synchronize().ok());
}

}  // namespace
}  // namespace comoe::device
