// Random programs on the emulated accelerator against a model of their times: every sum and every overlap, at
// every point where the host stops, and the same again in a second run. And: steady use allocates nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <new>
#include <vector>

#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "tests/engine/device/emulated_test_util.h"

namespace {
std::atomic<std::int64_t> allocations{0};
}  // namespace

// Not inlined, or GCC 12 sees free() called on what new returned and warns.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* data = std::malloc(std::max<std::size_t>(bytes, 1)); data != nullptr) {
    return data;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* data) noexcept { std::free(data); }
[[gnu::noinline]] void operator delete(void* data, std::size_t /*bytes*/) noexcept { std::free(data); }

namespace comoe::device {
namespace {

using base::CopyDirection;
using base::WaitEdge;

std::uint64_t TestSeed() {
  const char* text = std::getenv("COMOE_TEST_SEED");
  return text == nullptr ? 20250610 : std::strtoull(text, nullptr, 10);
}

struct Interval {
  std::int64_t begin, end;
};
std::int64_t Overlap(const Interval& a, const Interval& b) {
  return std::max<std::int64_t>(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

// Times in nanoseconds, intervals kept for ever, sums by brute force.
struct Model {
  // Streams: 0 compute, 1 and 2 copy, 3 host.
  std::array<std::int64_t, 4> tail{};
  std::int64_t now = 0;
  std::vector<Interval> compute, idle, host;
  std::array<std::vector<Interval>, 3> copies;  // by direction
  std::array<std::vector<Interval>, base::kNumWaitEdges> stalls;

  std::int64_t Sum(const std::vector<Interval>& intervals) const {
    std::int64_t sum = 0;
    for (const Interval& interval : intervals) {
      sum += Overlap(interval, {0, now});
    }
    return sum;
  }
  std::int64_t Overlapped(const std::vector<Interval>& intervals) const {
    std::int64_t sum = 0;
    for (const Interval& a : intervals) {
      for (const Interval& b : compute) {
        sum += Overlap({a.begin, std::min(a.end, now)}, b);
      }
    }
    return sum;
  }
};

// A program of `ops` random operations, run on a device and, where `check`, in the model.
class Program {
 public:
  Program(std::uint64_t seed, bool check) : seed_(seed), check_(check) {
    streams_ = {rig_.compute.get(), rig_.copy.get(), rig_.copy2.get(), rig_.host.get()};
  }

  void Run(int ops) {
    for (int i = 0; i < ops && !testing::Test::HasFatalFailure(); ++i) {
      Step();
    }
  }
  Rig& rig() { return rig_; }

 private:
  struct Point {
    Event event;
    std::int64_t time = 0;
  };

  std::int64_t Draw(std::int64_t n) {
    return static_cast<std::int64_t>(base::RandomBits(seed_, draws_++) % static_cast<std::uint64_t>(n));
  }

  std::int64_t Start(std::size_t s) const { return std::max(model_.tail[s], model_.now); }

  void Step() {
    const std::int64_t ns = (1 + Draw(50)) * 100;
    const auto bytes = static_cast<std::size_t>(ns);
    switch (Draw(9)) {
      case 0:
      case 1:
        return DoKernel(0, ns);
      case 2:
        return DoKernel(3, ns);
      case 3:
        return DoCopy(1 + static_cast<std::size_t>(Draw(2)), 0, bytes);
      case 4:
        return DoCopy(1 + static_cast<std::size_t>(Draw(2)), 1, bytes);
      case 5:
        return DoCopy(3, 2, bytes);
      case 6: {
        const auto s = static_cast<std::size_t>(Draw(4));
        points_[static_cast<std::size_t>(Draw(8))] = {RecordOn(*streams_[s]), model_.tail[s]};
        return;
      }
      case 7:
        return DoWait(static_cast<std::size_t>(Draw(4)));
      default:
        switch (Draw(4)) {
          case 0:
            return DoSynchronize();
          case 1:
            return DoHoldUp();
          default:
            return DoWait(0);
        }
    }
  }

  void DoKernel(std::size_t s, std::int64_t ns) {
    Kernel(*streams_[s], static_cast<double>(ns));
    const std::int64_t begin = Start(s);
    if (s == 0 && begin > model_.tail[0]) {
      model_.idle.push_back({model_.tail[0], begin});
    }
    (s == 0 ? model_.compute : model_.host).push_back({begin, begin + ns});
    model_.tail[s] = begin + ns;
  }

  void DoCopy(std::size_t s, std::size_t direction, std::size_t bytes) {
    const absl::Status status = direction == 2
                                    ? streams_[s]->CopyAsync(rig_.pinned.data(), rig_.pageable.data(), bytes)
                                    : (direction == 0 ? rig_.HostToDevice(*streams_[s], bytes)
                                                      : rig_.DeviceToHost(*streams_[s], bytes));
    ASSERT_TRUE(status.ok());
    std::int64_t begin = Start(s);
    const auto length = static_cast<std::int64_t>(bytes);
    std::vector<Interval>& copies = model_.copies[direction];
    const auto in_the_way = [&](const Interval& copy) { return Overlap(copy, {begin, begin + length}) > 0; };
    // The first stretch of the link that nobody has taken.
    for (auto copy = copies.begin(); direction < 2 && copy != copies.end();) {
      copy = std::find_if(copies.begin(), copies.end(), in_the_way);
      begin = copy == copies.end() ? begin : copy->end;
    }
    model_.tail[s] = begin + length;
    copies.push_back({begin, model_.tail[s]});
  }

  void DoWait(std::size_t s) {
    const Point& point = points_[static_cast<std::size_t>(Draw(8))];
    const auto edge = static_cast<WaitEdge>(Draw(base::kNumWaitEdges));
    ASSERT_TRUE(streams_[s]->Wait(point.event, edge).ok());
    const std::int64_t from = Start(s);
    if (point.time > from) {
      if (s == 0) {
        if (from > model_.tail[0]) {
          model_.idle.push_back({model_.tail[0], from});
        }
        model_.stalls[static_cast<std::size_t>(edge)].push_back({from, point.time});
      }
      model_.tail[s] = point.time;
    }
  }

  // The host waits for what a stream has done by now, and the compute stream for the host.
  void DoHoldUp() {
    const auto s = static_cast<std::size_t>(Draw(4));
    const auto edge = static_cast<WaitEdge>(Draw(base::kNumWaitEdges));
    const std::int64_t from = Start(0);
    {
      const HoldUp held_up(streams_[0], edge);
      ASSERT_TRUE(RecordOn(*streams_[s]).Synchronize().ok());
    }
    model_.now = std::max(model_.now, model_.tail[s]);
    if (model_.now > from) {
      if (from > model_.tail[0]) {
        model_.idle.push_back({model_.tail[0], from});
      }
      model_.stalls[static_cast<std::size_t>(edge)].push_back({from, model_.now});
      model_.tail[0] = model_.now;
    }
  }

  void DoSynchronize() {
    const auto s = static_cast<std::size_t>(Draw(4));
    ASSERT_TRUE(streams_[s]->Synchronize().ok());
    model_.now = std::max(model_.now, model_.tail[s]);
    if (check_) {
      Compare();
    }
  }

  static double Seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

  void Compare() {
    const DeviceTimes times = rig_.device->times();
    ASSERT_EQ(rig_.device->Now(), Seconds(model_.now));
    ASSERT_EQ(times.compute, Seconds(model_.Sum(model_.compute)));
    ASSERT_EQ(times.host_lane, Seconds(model_.Sum(model_.host)));
    std::int64_t stalled = 0;
    for (std::size_t e = 0; e < base::kNumWaitEdges; ++e) {
      ASSERT_EQ(times.stalled.values[e], Seconds(model_.Sum(model_.stalls[e]))) << "edge " << e;
      stalled += model_.Sum(model_.stalls[e]);
    }
    for (std::size_t d = 0; d < 3; ++d) {
      ASSERT_EQ(times.copy_busy.values[d], Seconds(model_.Sum(model_.copies[d]))) << "direction " << d;
      ASSERT_EQ(times.copy_overlapped.values[d], Seconds(model_.Overlapped(model_.copies[d])))
          << "direction " << d;
    }
    // Nothing is lost: the device computes, waits, or has nothing to do.
    const std::int64_t idle =
        model_.Sum(model_.idle) + std::max<std::int64_t>(0, model_.now - model_.tail[0]);
    ASSERT_EQ(model_.now, model_.Sum(model_.compute) + stalled + idle);
    ASSERT_NEAR(rig_.device->Now(), times.compute + times.stalled.Sum() + Seconds(idle), 1e-12);
  }

  const std::uint64_t seed_;
  const bool check_;
  std::uint64_t draws_ = 0;
  Rig rig_;
  std::array<Stream*, 4> streams_{};
  std::array<Point, 8> points_;
  Model model_;
};

TEST(EmulatedTimesTest, RandomProgramsAddUp) {
  const std::uint64_t seed = TestSeed();
  std::cout << "seed " << seed << " (COMOE_TEST_SEED)" << std::endl;
  for (std::uint64_t i = 0; i < 30 && !HasFatalFailure(); ++i) {
    Program(seed + i, true).Run(1000);
  }
}

TEST(EmulatedTimesTest, RunsRepeat) {
  const auto run = [] {
    Program program(TestSeed(), false);
    program.Run(2000);
    return std::make_pair(program.rig().device->Now(), program.rig().device->times());
  };
  const auto [now, times] = run();
  const auto [now2, times2] = run();
  EXPECT_EQ(now, now2);
  EXPECT_EQ(times.compute, times2.compute);
  EXPECT_EQ(times.stalled.values, times2.stalled.values);
  EXPECT_EQ(times.copy_overlapped.values, times2.copy_overlapped.values);
}

// Keeps four copies on their way.
class Refill final : public EventListener {
 public:
  explicit Refill(Rig& rig) : rig_(rig) {}
  void OnEvent(std::uint64_t tag) override {
    if (tag > 0) {
      Start(tag - 1);
    }
  }
  void Start(std::uint64_t tag) {
    ASSERT_TRUE(rig_.HostToDevice(*rig_.copy2, 700).ok());
    rig_.device->Notify(RecordOn(*rig_.copy2), *this, tag);
  }

 private:
  Rig& rig_;
};

TEST(EmulatedTimesTest, SteadyUseAllocatesNothing) {
  Rig rig;
  Refill refill(rig);
  base::Stage stage;
  std::int64_t before = 0;
  for (int round = 0; round < 1100; ++round) {
    if (round == 100) {
      before = allocations.load();
    }
    for (int i = 0; i < 10; ++i) {
      rig.compute->SetStage(stage);
      if (i % 4 == 0) {
        refill.Start(2);
      }
      ASSERT_TRUE(rig.HostToDevice(*rig.copy, 1000).ok());
      const Event copied = RecordOn(*rig.copy);
      ASSERT_TRUE(rig.host->CopyAsync(rig.pinned.data(), rig.pageable.data(), 500).ok());
      ASSERT_TRUE(rig.compute->Wait(RecordOn(*rig.host), WaitEdge::kHostLane).ok());
      ASSERT_TRUE(rig.compute->Wait(copied, WaitEdge::kDemandCopy).ok());
      Kernel(*rig.compute, 1500);
      ASSERT_TRUE(rig.copy->Wait(RecordOn(*rig.compute), WaitEdge::kSlotFree).ok());
    }
    ASSERT_TRUE(rig.compute->Synchronize().ok());
  }
  EXPECT_EQ(allocations.load() - before, 0);
}

}  // namespace
}  // namespace comoe::device
