// The emulated accelerator on the real clock, with threads: bytes and errors arrive, waits end, and all of it
// can be dropped while work is queued. Copies are made slow where a test needs them to be under way.
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/device/emulated_test_util.h"

namespace comoe::device {
namespace {

using base::CopyDirection;
using base::WaitEdge;

EmulatedOptions RealOptions() {
  EmulatedOptions options = RoundOptions();
  options.real_clock = true;
  options.rates.link_bytes_per_second = 100e9;
  options.rates.host_copy_bytes_per_second = 100e9;
  return options;
}

EmulatedOptions WithFaults(std::vector<CopyFault> faults) {
  EmulatedOptions options = RealOptions();
  options.copy_faults = [faults = std::move(faults)](const CopyRequest& request) {
    return request.index < faults.size() ? faults[request.index] : CopyFault::None();
  };
  return options;
}

TEST(EmulatedRealTest, SaysWhatItIs) {
  EXPECT_THAT(Rig(RealOptions()).device->Describe(), testing::HasSubstr("emulated accelerator, real clock"));
}

TEST(EmulatedRealTest, ACopyLastsAsLongAsTheLinkNeeds) {
  EmulatedOptions options = RealOptions();
  options.rates.link_bytes_per_second = 1e7;
  Rig rig(options);
  std::memset(rig.pinned.data(), 5, Rig::kBytes);
  constexpr std::size_t kHalf = Rig::kBytes / 2;
  constexpr double kSeconds = kHalf / 1e7;
  const double begin = rig.device->Now();
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, kHalf).ok());
  // Shares the link.
  ASSERT_TRUE(rig.copy2->CopyAsync(rig.slot.data() + kHalf, rig.pinned.data() + kHalf, kHalf).ok());
  const Event first = RecordOn(*rig.copy);
  const Event second = RecordOn(*rig.copy2);
  ASSERT_TRUE(rig.compute->Wait(first, WaitEdge::kDemandCopy).ok());
  ASSERT_TRUE(rig.compute->Wait(second, WaitEdge::kPrefetchCopy).ok());
  EXPECT_EQ(rig.slot.data()[Rig::kBytes - 1], std::byte{5});
  EXPECT_GE(rig.device->Now() - begin, 2.0 * kSeconds);
  const DeviceTimes times = rig.device->times();
  EXPECT_GE(times.copy_busy[CopyDirection::kHostToDevice], 2.0 * kSeconds);
  EXPECT_GT(times.stalled.Sum(), 0.0);
  EXPECT_LE(times.stalled.Sum(), rig.device->Now() - begin);
  EXPECT_EQ(times.compute, 0.0);
  EXPECT_GE(first.state()->Seconds(), begin + kSeconds);
}

TEST(EmulatedRealTest, KernelsOverlapCopies) {
  EmulatedOptions options = RealOptions();
  options.rates.link_bytes_per_second = 1e9;
  Rig rig(options);
  auto& compute = dynamic_cast<EmulatedStream&>(*rig.compute);
  compute.BeginKernel();
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, Rig::kBytes).ok());
  ASSERT_TRUE(RecordOn(*rig.copy).Synchronize().ok());
  compute.EndKernel({});
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, Rig::kBytes).ok());  // overlaps nothing
  ASSERT_TRUE(rig.copy->Synchronize().ok());
  const DeviceTimes times = rig.device->times();
  constexpr double kSeconds = Rig::kBytes / 1e9;
  EXPECT_GE(times.copy_overlapped[CopyDirection::kHostToDevice], kSeconds);
  EXPECT_LE(times.copy_overlapped[CopyDirection::kHostToDevice], times.compute);
  EXPECT_GE(times.copy_busy[CopyDirection::kHostToDevice],
            times.copy_overlapped[CopyDirection::kHostToDevice] + kSeconds);
}

TEST(EmulatedRealTest, WhoeverQueuesAPageableCopyIsHeldUp) {
  EmulatedOptions options = RealOptions();
  options.rates.pageable_bytes_per_second = 1e9;
  Rig rig(options);
  {
    const HoldUp held_up(rig.compute.get(), WaitEdge::kDemandCopy);
    ASSERT_TRUE(rig.copy->CopyAsync(rig.slot.data(), rig.pageable.data(), Rig::kBytes).ok());
  }
  EXPECT_GE(rig.device->times().stalled[WaitEdge::kDemandCopy], Rig::kBytes / 1e9);
}

class Expert final : public Stream::HostWork {
 public:
  absl::Status Run(Stream& stream) override {
    EXPECT_NE(stream.cpu(), nullptr);
    stream.CountDiskRead(1000);
    Kernel(stream, 0);
    ++runs;
    return status;
  }
  int runs = 0;
  absl::Status status;
};

TEST(EmulatedRealTest, HostWorkRunsInOrderOnItsOwnThread) {
  Rig rig(RealOptions());
  Expert expert;
  for (int i = 1; i <= 50; ++i) {
    ASSERT_TRUE(rig.host->Submit(expert).ok());
    ASSERT_TRUE(rig.compute->Wait(RecordOn(*rig.host), WaitEdge::kHostLane).ok());
    EXPECT_EQ(expert.runs, i);
  }
  expert.status = absl::InternalError("broken");
  ASSERT_TRUE(rig.host->Submit(expert).ok());
  EXPECT_EQ(rig.compute->Wait(RecordOn(*rig.host), WaitEdge::kHostLane), expert.status);
  EXPECT_EQ(rig.host->Synchronize(), expert.status);
  EXPECT_TRUE(rig.host->Synchronize().ok());
  EXPECT_GT(rig.device->times().copy_busy[CopyDirection::kDiskToHost], 0.0);
}

TEST(EmulatedRealTest, Faults) {
  const absl::Status broken = absl::DataLossError("broken");
  Rig rig(WithFaults({CopyFault::Fail(broken), CopyFault::Hang(), CopyFault::Late(0.02)}));
  std::vector<Event> events;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(rig.HostToDevice(*rig.copy, 100).ok());
    events.push_back(RecordOn(*rig.copy));
  }
  EXPECT_EQ(rig.compute->Wait(events[0], WaitEdge::kDemandCopy), broken);
  EXPECT_EQ(rig.compute->Wait(events[1], WaitEdge::kDemandCopy, absl::Milliseconds(1)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rig.compute->Wait(events[1], WaitEdge::kDemandCopy).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(rig.compute->Wait(events[3], WaitEdge::kDemandCopy).ok());
  EXPECT_TRUE(events[2].Done());
  EXPECT_GE(events[2].state()->Seconds(), events[0].state()->Seconds() + 0.02);
  EXPECT_EQ(rig.copy->Synchronize(), broken);
}

TEST(EmulatedRealTest, APageableCopyHoldsUpItsCaller) {
  Rig rig(RealOptions());
  std::vector<std::byte> plain(1000, std::byte{7});
  ASSERT_TRUE(rig.copy->CopyAsync(rig.slot.data(), plain.data(), plain.size()).ok());
  EXPECT_EQ(rig.slot.data()[999], std::byte{7});
}

// Starts the next copy when it hears of the last, pageable ones among them, and says when all are done.
class Chain final : public EventListener {
 public:
  explicit Chain(Rig& rig) : rig_(rig) {}
  void Start(std::uint64_t left) {
    const Buffer& source = left % 3 == 0 ? rig_.pageable : rig_.pinned;
    ASSERT_TRUE(rig_.copy->CopyAsync(rig_.slot.data(), source.data(), 100).ok());
    rig_.device->Notify(RecordOn(*rig_.copy), *this, left);
  }
  void OnEvent(std::uint64_t left) override {
    if (left > 0) {
      return Start(left - 1);
    }
    base::MutexLock lock(&mutex_);
    done_ = true;
    changed_.SignalAll();
  }
  void Await() {
    base::MutexLock lock(&mutex_);
    while (!done_) {
      changed_.Wait(&mutex_);
    }
  }

 private:
  Rig& rig_;
  base::Mutex mutex_;
  base::CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(EmulatedRealTest, ListenersStartTheNextCopy) {
  Rig rig(RealOptions());
  Chain chain(rig);
  chain.Start(200);
  chain.Await();
  ASSERT_TRUE(rig.copy->Synchronize().ok());
  Chain at_once(rig);
  rig.device->Notify(Event(), at_once, 0);
  at_once.Await();
}

// A stream goes while its copy is under way, another waits for an event that will not come, and both have
// more queued. Nothing hangs; who waits is told.
TEST(EmulatedRealTest, StreamsMayGoWithWorkQueued) {
  Rig rig(WithFaults({CopyFault::Late(3600.0)}));
  Expert expert;
  ASSERT_TRUE(rig.HostToDevice(*rig.copy, 100).ok());
  const Event late = RecordOn(*rig.copy);
  ASSERT_TRUE(rig.copy2->Wait(late, WaitEdge::kStaged, absl::InfiniteDuration()).ok());
  ASSERT_TRUE(rig.HostToDevice(*rig.copy2, 100).ok());
  const Event behind = RecordOn(*rig.copy2);
  ASSERT_TRUE(rig.host->Wait(behind, WaitEdge::kRows, absl::InfiniteDuration()).ok());
  ASSERT_TRUE(rig.host->Submit(expert).ok());
  const Event computed = RecordOn(*rig.host);
  EXPECT_EQ(late.Synchronize(absl::Milliseconds(2)).code(), absl::StatusCode::kDeadlineExceeded);
  rig.host.reset();
  EXPECT_EQ(expert.runs, 0);
  EXPECT_EQ(computed.Synchronize().code(), absl::StatusCode::kCancelled);
  rig.copy.reset();
  EXPECT_TRUE(late.Done());
  // It had waited in vain: its own event fails with the reason.
  EXPECT_EQ(behind.Synchronize().code(), absl::StatusCode::kCancelled);
}

// A ring of slots: filled by two copy streams from a staging ring that the host stream fills, read by the
// compute stream, each waiting for the others along every edge. Every value is checked.
class Fill final : public Stream::HostWork {
 public:
  absl::Status Run(Stream& /*stream*/) override {
    std::memset(target, value, 64);
    return absl::OkStatus();
  }
  std::byte* target = nullptr;
  int value = 0;
};

TEST(EmulatedRealTest, PipelinesKeepTheirOrder) {
  constexpr std::size_t kSlots = 4;
  constexpr std::size_t kRounds = 500;
  Rig rig(RealOptions());
  std::vector<Fill> fills(kRounds);
  std::vector<Event> copied(kSlots);
  std::vector<Event> read(kSlots);
  const auto load = [&](std::size_t i) {
    const std::size_t at = i % kSlots;
    std::byte* staging = rig.pinned.data() + at * 64;
    fills[i].target = staging;
    fills[i].value = static_cast<int>(i % 251);
    ASSERT_TRUE(rig.host->Wait(copied[at], WaitEdge::kSlotFree, absl::InfiniteDuration()).ok());
    ASSERT_TRUE(rig.host->Submit(fills[i]).ok());
    Stream& copy = i % 2 == 0 ? *rig.copy : *rig.copy2;
    ASSERT_TRUE(copy.Wait(RecordOn(*rig.host), WaitEdge::kStaged, absl::InfiniteDuration()).ok());
    ASSERT_TRUE(copy.Wait(read[at], WaitEdge::kSlotFree, absl::InfiniteDuration()).ok());
    ASSERT_TRUE(copy.CopyAsync(rig.slot.data() + at * 64, staging, 64).ok());
    copied[at] = RecordOn(copy);
  };
  for (std::size_t i = 0; i < kSlots; ++i) {
    load(i);
  }
  for (std::size_t i = 0; i < kRounds && !HasFatalFailure(); ++i) {
    const std::size_t at = i % kSlots;
    ASSERT_TRUE(rig.compute->Wait(copied[at], WaitEdge::kDemandCopy).ok());
    auto& compute = dynamic_cast<EmulatedStream&>(*rig.compute);
    compute.BeginKernel();
    ASSERT_EQ(rig.slot.data()[at * 64 + 63], static_cast<std::byte>(i % 251)) << i;
    compute.EndKernel({});
    read[at] = RecordOn(*rig.compute);
    if (i + kSlots < kRounds) {
      load(i + kSlots);
    }
  }
  for (Stream* stream : {rig.copy.get(), rig.copy2.get(), rig.host.get(), rig.compute.get()}) {
    EXPECT_TRUE(stream->Synchronize().ok());
  }
}

}  // namespace
}  // namespace comoe::device
