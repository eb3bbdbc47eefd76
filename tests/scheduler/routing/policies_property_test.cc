// Every policy over random routing, with copies that fail and slots that are lost, held to the contract by
// the replayer: an expert in one slot at most, no slot named that the layer needs, is lost, or was named
// already.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/replay.h"

namespace {

thread_local std::int64_t num_allocations = 0;

void* CountedAllocate(std::size_t bytes) {
  ++num_allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return CountedAllocate(bytes); }
void* operator new[](std::size_t bytes) { return CountedAllocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return CountedAllocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return CountedAllocate(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace comoe::routing {
namespace {

constexpr std::int32_t kExperts = 8;
constexpr std::int32_t kTopK = 2;
constexpr std::int32_t kTokens = 64;

// Rows of k different experts, some far likelier than others, drifting with time.
RoutingTrace RandomTrace(std::uint64_t seed, std::int32_t num_sequences, std::int32_t num_moe_layers) {
  RoutingTrace trace;
  trace.num_sequences = num_sequences;
  trace.num_tokens = kTokens;
  trace.num_moe_layers = num_moe_layers;
  trace.experts_per_token = kTopK;
  std::uint64_t draw = 0;
  for (std::int32_t row = 0; row < num_sequences * kTokens * num_moe_layers; ++row) {
    const std::uint64_t drift = static_cast<std::uint64_t>(row) / 100;
    const std::uint64_t a = base::RandomBits(seed, draw++) % kExperts;
    const std::uint64_t b = base::RandomBits(seed, draw++) % kExperts;
    const std::uint64_t first = (a * b / kExperts + drift) % kExperts;
    const std::uint64_t second = (first + 1 + base::RandomBits(seed, draw++) % (kExperts - 1)) % kExperts;
    trace.experts.push_back(static_cast<std::uint16_t>(first));
    trace.experts.push_back(static_cast<std::uint16_t>(second));
  }
  return trace;
}

// Steps of decodes of the first sequences, and now and then a chunk of prefill of the last.
std::vector<TraceStep> MixedSteps(const RoutingTrace& trace, std::uint64_t seed) {
  std::vector<TraceStep> steps;
  for (std::int32_t t = 0; t < kTokens; ++t) {
    TraceStep step;
    const std::uint64_t bits = base::RandomBits(seed + 1, static_cast<std::uint64_t>(t));
    if (bits % 5 == 0 || t < 2) {
      const auto num_rows = static_cast<std::int32_t>(1 + (bits >> 8) % 20);
      AppendSpan(trace, trace.num_sequences - 1, 0, num_rows, 0, &step);
    }
    for (std::int32_t s = 0; t >= 2 && s + 1 < trace.num_sequences; ++s) {
      if ((bits >> (16 + s)) % 4 != 0) {
        AppendSpan(trace, s, t, 1, t + 1, &step);
      }
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

struct Case {
  std::int32_t device_slots;
  std::int32_t pinned_slots;  // -1: all are pinned
  bool exclusive;
};
constexpr std::array<Case, 10> kCases = {{{0, -1, false},
                                          {1, -1, false},
                                          {3, -1, false},
                                          {12, -1, false},
                                          {40, -1, false},
                                          {1, 1, false},
                                          {7, 5, false},
                                          {1, 1, true},
                                          {5, 4, true},
                                          {12, 0, true}}};

TierShape ShapeOf(const Case& c) {
  TierShape shape;
  shape.num_layers = 5;
  shape.moe_layers = {0, 2, 3};
  shape.num_experts = kExperts;
  shape.experts_per_token = kTopK;
  shape.device_slots = c.device_slots;
  shape.pinned_holds_all = c.pinned_slots < 0;
  shape.pinned_slots = std::max(c.pinned_slots, 0);
  shape.exclusive = c.exclusive;
  return shape;
}

api::LaneState Lanes() {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = 1.0;
  lanes.host_seconds_per_expert = 0.7;
  lanes.host_seconds_per_row = 0.3;
  return lanes;
}

TEST(PoliciesPropertyTest, KeepTheContractWhateverHappens) {
  std::int64_t num_hits = 0, num_host = 0, num_prefetched = 0, num_promoted = 0, num_failed = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    const RoutingTrace trace = RandomTrace(seed, 5, 3);
    const std::vector<TraceStep> steps = MixedSteps(trace, seed);
    for (const Case& c : kCases) {
      for (const char* name : kPolicyNames) {
        const TierShape shape = ShapeOf(c);
        PolicyOptions options;
        options.window = 10;
        options.prefetch_margin = 0.5;
        options.promotion_margin = 0.5;
        options.host_lane = seed % 2 == 1;
        absl::StatusOr<Policy> policy = MakePolicy(name, shape, options);
        if (!policy.ok()) {
          EXPECT_EQ(policy.status().code(), absl::StatusCode::kFailedPrecondition) << name;
          continue;
        }
        ReplayOptions replay;
        replay.lanes = Lanes();
        std::uint64_t draw = 0;
        if (seed % 3 != 0) {
          replay.fault = [seed, &draw](base::Tier, std::int32_t, base::ExpertKey) {
            const std::uint64_t fate = base::RandomBits(seed + 2, draw++) % 100;
            return fate == 0 ? CopyFault::kLosesSlot : fate < 15 ? CopyFault::kFails : CopyFault::kNone;
          };
        }
        const absl::StatusOr<ReplayTotals> totals = RunTrace(shape, steps, replay, policy->director.get());
        ASSERT_TRUE(totals.ok()) << totals.status() << ": " << name << ", seed " << seed << ", "
                                 << c.device_slots << " device and " << c.pinned_slots << " pinned slots"
                                 << (c.exclusive ? ", exclusive" : "");
        EXPECT_EQ(totals->lookups,
                  totals->hits + totals->fetched_kept + totals->fetched_staged + totals->host);
        EXPECT_LE(totals->prefetched_used + totals->prefetched_wasted, totals->prefetched);
        num_hits += totals->hits;
        num_host += totals->host;
        num_prefetched += totals->prefetched;
        num_promoted += totals->promoted;
        num_failed += totals->failed;
      }
    }
  }
  // All of it was exercised.
  for (const std::int64_t count : {num_hits, num_host, num_prefetched, num_promoted, num_failed}) {
    EXPECT_GT(count, 100);
  }
}

TEST(PoliciesPropertyTest, TheReplayerNoticesABrokenDirector) {
  class Broken final : public api::ExpertDirector {
   public:
    Broken() { map_.slot.assign(kExperts, -1); }
    absl::string_view policy() const override { return "broken"; }
    void BeginStep(const api::StepPlan& /*plan*/) override {}
    const api::SlotMap& slots(std::int32_t /*layer*/) const override { return map_; }
    void DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> /*misses*/,
                      const api::LaneState& /*lanes*/, absl::Span<api::MissDecision> decisions) override {
      for (api::MissDecision& decision : decisions) {
        decision = {api::ServingDecision::kFetch, 0};
      }
    }
    void ObserveRouting(const api::RoutingObservation& /*observation*/) override {}
    void EndStep() override {}

   private:
    api::SlotMap map_;
  };
  const RoutingTrace trace = RandomTrace(1, 2, 3);
  Broken director;
  const absl::Status status = RunTrace(ShapeOf(kCases[2]), MixedSteps(trace, 1), {}, &director).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
}

TEST(PoliciesPropertyTest, NothingIsAllocatedOnceWarm) {
  const RoutingTrace trace = RandomTrace(7, 5, 3);
  const std::vector<TraceStep> steps = MixedSteps(trace, 7);
  for (const Case& c : {kCases[3], kCases[6], kCases[8]}) {
    for (const char* name : {"naive", "static", "lru", "simple", "hub"}) {
      const TierShape shape = ShapeOf(c);
      PolicyOptions options;
      options.host_lane = true;
      absl::StatusOr<Policy> policy = MakePolicy(name, shape, options);
      ASSERT_TRUE(policy.ok()) << policy.status();
      ReplayOptions replay_options;
      replay_options.lanes = Lanes();
      Replayer replayer(shape, replay_options, policy->director.get());
      for (int round = 0; round < 2; ++round) {
        const std::int64_t before = num_allocations;
        for (const TraceStep& step : steps) {
          ASSERT_TRUE(replayer.Step(step).ok());
        }
        if (round == 1) {
          EXPECT_EQ(num_allocations, before) << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace comoe::routing
