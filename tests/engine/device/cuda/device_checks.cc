#include "tests/engine/device/cuda/device_checks.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/status_macros.h"
#include "engine/base/sync.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/device/cuda/cuda_stream.h"

namespace comoe::testing {
namespace {

using base::WaitEdge;
using device::Buffer;
using device::Device;
using device::Event;
using device::MemoryKind;
using device::Stream;
using device::StreamKind;

#define CHECK_THAT(condition)                                                                         \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      return absl::FailedPreconditionError(absl::StrCat("line ", __LINE__, ": not so: " #condition)); \
    }                                                                                                 \
  } while (false)

class Work final : public Stream::HostWork {
 public:
  explicit Work(std::function<absl::Status(Stream&)> run) : run_(std::move(run)) {}
  absl::Status Run(Stream& stream) override { return run_(stream); }

 private:
  std::function<absl::Status(Stream&)> run_;
};

void Fill(const Buffer& buffer, std::uint32_t seed) {
  auto* words = reinterpret_cast<std::uint32_t*>(buffer.data());
  for (std::size_t i = 0; i < buffer.size() / 4; ++i) {
    words[i] = static_cast<std::uint32_t>(i) * 2654435761U + seed;
  }
}

bool Same(const Buffer& a, const Buffer& b) { return std::memcmp(a.data(), b.data(), a.size()) == 0; }

absl::Status CopiesAcrossStreams(Device& device) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  COMOE_ASSIGN_OR_RETURN(const Buffer in, device.Allocate(MemoryKind::kPinned, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer out, device.Allocate(MemoryKind::kPinned, kBytes, 4096));
  COMOE_ASSIGN_OR_RETURN(const Buffer a, device.Allocate(MemoryKind::kDevice, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer b, device.Allocate(MemoryKind::kDevice, kBytes, 4096));
  CHECK_THAT(reinterpret_cast<std::uintptr_t>(b.data()) % 4096 == 0);
  COMOE_ASSIGN_OR_RETURN(const auto up, device.CreateStream("up", StreamKind::kCopy));
  COMOE_ASSIGN_OR_RETURN(const auto compute, device.CreateStream("compute", StreamKind::kCompute));
  COMOE_ASSIGN_OR_RETURN(const auto down, device.CreateStream("down", StreamKind::kCopy));
  for (std::uint32_t round = 0; round < 8; ++round) {
    Fill(in, round);
    std::memset(out.data(), 0xee, kBytes);
    COMOE_RETURN_IF_ERROR(up->CopyAsync(a.data(), in.data(), kBytes));
    COMOE_ASSIGN_OR_RETURN(const Event arrived, up->Record());
    COMOE_RETURN_IF_ERROR(compute->Wait(arrived, WaitEdge::kDemandCopy));
    COMOE_RETURN_IF_ERROR(compute->CopyAsync(b.data(), a.data(), kBytes));
    COMOE_ASSIGN_OR_RETURN(const Event computed, compute->Record());
    COMOE_RETURN_IF_ERROR(down->Wait(computed, WaitEdge::kRows));
    COMOE_RETURN_IF_ERROR(down->CopyAsync(out.data(), b.data(), kBytes));
    COMOE_ASSIGN_OR_RETURN(const Event back, down->Record());
    COMOE_RETURN_IF_ERROR(back.Synchronize());
    CHECK_THAT(arrived.Done() && computed.Done());
    CHECK_THAT(Same(in, out));
  }
  COMOE_RETURN_IF_ERROR(compute->Synchronize());
  return down->Synchronize();
}

// Queued before the host has begun; sees what the host wrote.
absl::Status DeviceWaitsForHost(Device& device) {
  COMOE_ASSIGN_OR_RETURN(const Buffer in, device.Allocate(MemoryKind::kPinned, 4096, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer out, device.Allocate(MemoryKind::kPinned, 4096, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer on_device, device.Allocate(MemoryKind::kDevice, 4096, 256));
  COMOE_ASSIGN_OR_RETURN(const auto host, device.CreateStream("host", StreamKind::kHost));
  COMOE_ASSIGN_OR_RETURN(const auto copy, device.CreateStream("copy", StreamKind::kCopy));
  COMOE_ASSIGN_OR_RETURN(const auto compute, device.CreateStream("compute", StreamKind::kCompute));
  std::uint32_t round = 0;
  Work work([&](Stream& inside) -> absl::Status {
    CHECK_THAT(inside.cpu() != nullptr);
    absl::SleepFor(absl::Milliseconds(round < 2 ? 20 : 0));
    Fill(in, 1000 + round);
    return absl::OkStatus();
  });
  for (round = 0; round < 50; ++round) {
    std::memset(in.data(), 0, in.size());
    std::memset(out.data(), 1, out.size());
    COMOE_RETURN_IF_ERROR(host->Submit(work));
    COMOE_ASSIGN_OR_RETURN(const Event ready, host->Record());
    CHECK_THAT(round >= 2 || !ready.Done());
    COMOE_RETURN_IF_ERROR(copy->Wait(ready, WaitEdge::kHostLane));
    COMOE_RETURN_IF_ERROR(copy->CopyAsync(on_device.data(), in.data(), in.size()));
    COMOE_ASSIGN_OR_RETURN(const Event arrived, copy->Record());
    COMOE_RETURN_IF_ERROR(compute->Wait(arrived, WaitEdge::kHostLane));
    COMOE_RETURN_IF_ERROR(compute->CopyAsync(out.data(), on_device.data(), in.size()));
    COMOE_RETURN_IF_ERROR(compute->Synchronize());
    CHECK_THAT(ready.Done() && arrived.Done());
    CHECK_THAT(Same(in, out));
  }
  return absl::OkStatus();
}

absl::Status HostWaitsForDevice(Device& device) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  COMOE_ASSIGN_OR_RETURN(const Buffer in, device.Allocate(MemoryKind::kPinned, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer out, device.Allocate(MemoryKind::kPinned, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer on_device, device.Allocate(MemoryKind::kDevice, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const auto host, device.CreateStream("host", StreamKind::kHost));
  COMOE_ASSIGN_OR_RETURN(const auto copy, device.CreateStream("copy", StreamKind::kCopy));
  bool same = false;
  Work work([&](Stream&) {
    same = Same(in, out);
    return absl::OkStatus();
  });
  for (std::uint32_t round = 0; round < 3; ++round) {
    Fill(in, round);
    same = false;
    COMOE_RETURN_IF_ERROR(copy->CopyAsync(on_device.data(), in.data(), kBytes));
    COMOE_RETURN_IF_ERROR(copy->CopyAsync(out.data(), on_device.data(), kBytes));
    COMOE_ASSIGN_OR_RETURN(const Event copied, copy->Record());
    COMOE_RETURN_IF_ERROR(host->Wait(copied, WaitEdge::kRows, absl::Seconds(10)));
    COMOE_RETURN_IF_ERROR(host->Submit(work));
    COMOE_ASSIGN_OR_RETURN(const Event seen, host->Record());
    COMOE_RETURN_IF_ERROR(seen.Synchronize(absl::Seconds(10)));
    CHECK_THAT(same);
  }
  return host->Synchronize();
}

// Work that failed fails what waited for it, on whatever stream, and nothing after that.
absl::Status FailuresTravel(Device& device) {
  COMOE_ASSIGN_OR_RETURN(const auto host, device.CreateStream("host", StreamKind::kHost));
  COMOE_ASSIGN_OR_RETURN(const auto copy, device.CreateStream("copy", StreamKind::kCopy));
  COMOE_ASSIGN_OR_RETURN(const auto compute, device.CreateStream("compute", StreamKind::kCompute));
  Work work([](Stream&) {
    absl::SleepFor(absl::Milliseconds(5));
    return absl::DataLossError("bytes are lost");
  });
  COMOE_RETURN_IF_ERROR(host->Submit(work));
  COMOE_ASSIGN_OR_RETURN(const Event failed, host->Record());
  COMOE_ASSIGN_OR_RETURN(const Event after, host->Record());
  COMOE_RETURN_IF_ERROR(copy->Wait(failed, WaitEdge::kStaged));
  COMOE_ASSIGN_OR_RETURN(const Event copied, copy->Record());
  COMOE_RETURN_IF_ERROR(compute->Wait(copied, WaitEdge::kDemandCopy));
  CHECK_THAT(absl::IsDataLoss(compute->Synchronize()));
  CHECK_THAT(absl::IsDataLoss(failed.Synchronize()));
  CHECK_THAT(absl::IsDataLoss(copied.Synchronize()));
  CHECK_THAT(after.Synchronize().ok());
  CHECK_THAT(absl::IsDataLoss(compute->Wait(failed, WaitEdge::kStaged)));  // known already
  CHECK_THAT(absl::IsDataLoss(host->Synchronize()));
  CHECK_THAT(host->Synchronize().ok());
  CHECK_THAT(compute->Synchronize().ok());
  COMOE_ASSIGN_OR_RETURN(const Event next, copy->Record());
  return next.Synchronize();
}

class Heard final : public device::EventListener {
 public:
  void OnEvent(std::uint64_t tag) override {
    base::MutexLock lock(&mutex_);
    tags_.push_back(tag);
    changed_.SignalAll();
  }
  bool Await(std::size_t count) {
    base::MutexLock lock(&mutex_);
    while (tags_.size() < count) {
      if (changed_.WaitWithTimeout(&mutex_, absl::Seconds(10))) {
        return false;
      }
    }
    return true;
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<std::uint64_t> tags_ ABSL_GUARDED_BY(mutex_);
};

absl::Status ListenersHear(Device& device) {
  COMOE_ASSIGN_OR_RETURN(const Buffer in, device.Allocate(MemoryKind::kPinned, 1 << 20, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer on_device, device.Allocate(MemoryKind::kDevice, 1 << 20, 256));
  COMOE_ASSIGN_OR_RETURN(const auto host, device.CreateStream("host", StreamKind::kHost));
  COMOE_ASSIGN_OR_RETURN(const auto copy, device.CreateStream("copy", StreamKind::kCopy));
  Heard heard;
  Work work([](Stream&) {
    absl::SleepFor(absl::Milliseconds(2));
    return absl::OkStatus();
  });
  device.Notify(Event(), heard, 0);
  CHECK_THAT(heard.Await(1));
  for (std::uint64_t i = 1; i <= 20; ++i) {
    COMOE_RETURN_IF_ERROR(copy->CopyAsync(on_device.data(), in.data(), in.size()));
    COMOE_ASSIGN_OR_RETURN(const Event copied, copy->Record());
    device.Notify(copied, heard, i);
    COMOE_RETURN_IF_ERROR(host->Submit(work));
    COMOE_ASSIGN_OR_RETURN(const Event worked, host->Record());
    device.Notify(worked, heard, 100 + i);
  }
  CHECK_THAT(heard.Await(41));
  return absl::OkStatus();
}

// As StagedArgumentsLast, of more than fits in a part of the ring.
absl::Status ManyArgumentsLast(Device& device, device::CudaStream& stream) {
  constexpr std::size_t kBytes = device::CudaStream::kStagePart + 1;
  constexpr std::size_t kCopies = 4;
  COMOE_ASSIGN_OR_RETURN(const Buffer on_device, device.Allocate(MemoryKind::kDevice, kCopies * kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer out, device.Allocate(MemoryKind::kPinned, kCopies * kBytes, 256));
  for (std::size_t i = 0; i < kCopies; ++i) {
    COMOE_ASSIGN_OR_RETURN(std::byte* const staged, stream.Stage(kBytes));
    CHECK_THAT(reinterpret_cast<std::uintptr_t>(staged) % 256 == 0);
    std::memset(staged, static_cast<int>(i + 1), kBytes);
    COMOE_RETURN_IF_ERROR(stream.CopyAsync(on_device.data() + i * kBytes, staged, kBytes));
  }
  COMOE_RETURN_IF_ERROR(stream.CopyAsync(out.data(), on_device.data(), kCopies * kBytes));
  COMOE_RETURN_IF_ERROR(stream.Synchronize());
  for (std::size_t i = 0; i < kCopies * kBytes; ++i) {
    CHECK_THAT(out.data()[i] == static_cast<std::byte>(i / kBytes + 1));
  }
  return absl::OkStatus();
}

// Arguments stay what they were until the work that reads them is done, however much is staged meanwhile.
absl::Status StagedArgumentsLast(Device& device) {
  constexpr std::size_t kBytes = std::size_t{192} << 10;
  constexpr std::size_t kCopies = 200;  // four times round the ring
  COMOE_ASSIGN_OR_RETURN(const auto stream, device.CreateStream("compute", StreamKind::kCompute));
  auto* const cuda = dynamic_cast<device::CudaStream*>(stream.get());
  CHECK_THAT(cuda != nullptr);
  COMOE_ASSIGN_OR_RETURN(const Buffer on_device, device.Allocate(MemoryKind::kDevice, kCopies * kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer out, device.Allocate(MemoryKind::kPinned, kCopies * kBytes, 256));
  for (std::size_t i = 0; i < kCopies; ++i) {
    COMOE_ASSIGN_OR_RETURN(std::byte* const staged, cuda->Stage(kBytes));
    CHECK_THAT(reinterpret_cast<std::uintptr_t>(staged) % 256 == 0);
    std::memset(staged, static_cast<int>(i), kBytes);
    COMOE_RETURN_IF_ERROR(stream->CopyAsync(on_device.data() + i * kBytes, staged, kBytes));
  }
  COMOE_RETURN_IF_ERROR(stream->CopyAsync(out.data(), on_device.data(), kCopies * kBytes));
  COMOE_RETURN_IF_ERROR(stream->Synchronize());
  for (std::size_t i = 0; i < kCopies * kBytes; ++i) {
    CHECK_THAT(out.data()[i] == static_cast<std::byte>(i / kBytes));
  }
  COMOE_RETURN_IF_ERROR(ManyArgumentsLast(device, *cuda));
  COMOE_ASSIGN_OR_RETURN(const std::byte* const small, cuda->Scratch(1000));
  COMOE_ASSIGN_OR_RETURN(const std::byte* const again, cuda->Scratch(500));
  CHECK_THAT(small == again);
  return cuda->Scratch(std::size_t{40} << 20).status();
}

absl::Status TimesAddUp(Device& device) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  COMOE_ASSIGN_OR_RETURN(const Buffer in, device.Allocate(MemoryKind::kPinned, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer a, device.Allocate(MemoryKind::kDevice, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer b, device.Allocate(MemoryKind::kDevice, kBytes, 256));
  std::memset(in.data(), 1, kBytes);
  COMOE_ASSIGN_OR_RETURN(const auto copy, device.CreateStream("copy", StreamKind::kCopy));
  COMOE_ASSIGN_OR_RETURN(const auto compute, device.CreateStream("compute", StreamKind::kCompute));
  const device::DeviceTimes before = device.times();
  const double begin_host = device.Now();
  compute->SetStage({base::StageKind::kExpert, 1});
  COMOE_ASSIGN_OR_RETURN(const Event begin, copy->Record());
  COMOE_RETURN_IF_ERROR(copy->CopyAsync(a.data(), in.data(), kBytes));
  COMOE_ASSIGN_OR_RETURN(const Event end, copy->Record());
  COMOE_RETURN_IF_ERROR(compute->Wait(end, WaitEdge::kDemandCopy));
  COMOE_RETURN_IF_ERROR(compute->CopyAsync(b.data(), a.data(), kBytes));
  COMOE_RETURN_IF_ERROR(compute->Synchronize());
  const double wall = device.Now() - begin_host;
  const device::DeviceTimes after = device.times();
  const double copied = end.state()->Seconds() - begin.state()->Seconds();
  const double busy = after.copy_busy[base::CopyDirection::kHostToDevice] -
                      before.copy_busy[base::CopyDirection::kHostToDevice];
  const double stalled = after.stalled[WaitEdge::kDemandCopy] - before.stalled[WaitEdge::kDemandCopy];
  const double computed = after.compute - before.compute;
  CHECK_THAT(copied > 0.0 && copied <= wall);
  CHECK_THAT(busy > 0.5 * copied && busy < 1.2 * copied + 1e-4);
  CHECK_THAT(stalled > 0.0 && stalled <= wall);
  CHECK_THAT(computed > 0.0 && computed + stalled < wall + 1e-3);
  CHECK_THAT(begin.state()->Seconds() > begin_host - 1e-3 &&
             end.state()->Seconds() < begin_host + wall + 1e-3);
  return absl::OkStatus();
}

// However long the host is held up, the device's own work is no longer; and afterwards it goes on as before.
absl::Status HoldUpsAreWaits(Device& device) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr double kClock = 1e-3;  // how well clocks agree
  COMOE_ASSIGN_OR_RETURN(const Buffer a, device.Allocate(MemoryKind::kDevice, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer b, device.Allocate(MemoryKind::kDevice, kBytes, 256));
  COMOE_ASSIGN_OR_RETURN(const auto compute, device.CreateStream("compute", StreamKind::kCompute));
  // The host sleeps, once what is queued is done: for so long.
  const auto sleep = [&]() -> absl::StatusOr<double> {
    COMOE_ASSIGN_OR_RETURN(const Event drained, compute->Record());
    COMOE_RETURN_IF_ERROR(drained.Synchronize());
    const double since = device.Now();
    absl::SleepFor(absl::Milliseconds(20));
    return device.Now() - since;
  };
  for (const bool working : {true, false}) {  // when it begins
    const device::DeviceTimes before = device.times();
    const double begin = device.Now();
    if (working) {
      compute->SetStage({base::StageKind::kExpert, 1});
      COMOE_RETURN_IF_ERROR(compute->CopyAsync(b.data(), a.data(), kBytes));
    }
    double held_up = 0.0;
    {
      const device::HoldUp outer(compute.get(), WaitEdge::kSlotFree);
      const device::HoldUp inner(compute.get(), WaitEdge::kPrefetchCopy);
      COMOE_ASSIGN_OR_RETURN(held_up, sleep());
    }
    // Of a stretch of work this is part; otherwise there is nothing to do.
    COMOE_ASSIGN_OR_RETURN(const double slept, sleep());
    compute->SetStage({base::StageKind::kExpert, 1});
    COMOE_RETURN_IF_ERROR(compute->CopyAsync(b.data(), a.data(), kBytes));
    COMOE_RETURN_IF_ERROR(compute->Synchronize());
    const double wall = device.Now() - begin;
    const device::DeviceTimes after = device.times();
    const double stalled = after.stalled[WaitEdge::kSlotFree] - before.stalled[WaitEdge::kSlotFree];
    const double computed = after.compute - before.compute;
    CHECK_THAT(after.stalled[WaitEdge::kPrefetchCopy] == before.stalled[WaitEdge::kPrefetchCopy]);
    CHECK_THAT(stalled > held_up - kClock);
    CHECK_THAT(computed > (working ? slept : 0.0) - kClock && computed > 0.0);
    CHECK_THAT(computed + stalled < wall - (working ? 0.0 : slept) + kClock);
  }
  return absl::OkStatus();
}

absl::Status PageableCopiesCount(Device& device) {
  COMOE_ASSIGN_OR_RETURN(const Buffer host, device.Allocate(MemoryKind::kHost, 1 << 20, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer back, device.Allocate(MemoryKind::kHost, 1 << 20, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer pinned, device.Allocate(MemoryKind::kPinned, 1 << 20, 256));
  COMOE_ASSIGN_OR_RETURN(const Buffer on_device, device.Allocate(MemoryKind::kDevice, 1 << 20, 256));
  COMOE_ASSIGN_OR_RETURN(const auto copy, device.CreateStream("copy", StreamKind::kCopy));
  const std::uint64_t before = device::PageableCopies(device);
  Fill(host, 7);
  COMOE_RETURN_IF_ERROR(copy->CopyAsync(on_device.data(), host.data(), host.size()));
  COMOE_RETURN_IF_ERROR(copy->CopyAsync(pinned.data(), on_device.data(), host.size()));
  COMOE_RETURN_IF_ERROR(copy->CopyAsync(back.data(), on_device.data(), host.size()));
  COMOE_RETURN_IF_ERROR(copy->Synchronize());
  CHECK_THAT(device::PageableCopies(device) == before + 2);
  CHECK_THAT(Same(host, pinned) && Same(host, back));
  const absl::Status large = device.Allocate(MemoryKind::kDevice, std::size_t{1} << 44, 256).status();
  CHECK_THAT(absl::IsResourceExhausted(large));
  CHECK_THAT(device.health().ok());
  return absl::OkStatus();
}

}  // namespace

const std::vector<DeviceCheck>& DeviceChecks() {
  static const std::vector<DeviceCheck>& checks =
      *new std::vector<DeviceCheck>{{"copies across streams", CopiesAcrossStreams},
                                    {"the device waits for the host", DeviceWaitsForHost},
                                    {"the host waits for the device", HostWaitsForDevice},
                                    {"failures travel", FailuresTravel},
                                    {"listeners hear", ListenersHear},
                                    {"staged arguments last", StagedArgumentsLast},
                                    {"times add up", TimesAddUp},
                                    {"hold-ups are waits", HoldUpsAreWaits},
                                    {"pageable copies count", PageableCopiesCount}};
  return checks;
}

}  // namespace comoe::testing
