#include "scheduler/routing/split_planner.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "engine/base/rng.h"
#include "gtest/gtest.h"
#include "scheduler/routing/plan_judge.h"

namespace comoe::routing {
namespace {

// When a split ends, by its definition: the link copies one after another, the device computes what has come,
// the host works meanwhile.
double EndOf(std::uint32_t on_host, const std::vector<api::ExpertDemand>& misses,
             const api::LaneState& lanes) {
  double link = lanes.link_queue_seconds;
  double device = 0.0;
  double host = 0.0;
  for (std::size_t i = 0; i < misses.size(); ++i) {
    if ((on_host >> i & 1U) != 0) {
      host += lanes.host_seconds_per_expert + (misses[i].rows - 1) * lanes.host_seconds_per_row;
    } else {
      link += lanes.link_seconds_per_expert;
      device = std::max(device, link) + lanes.device_seconds_per_expert;
    }
  }
  const bool beside_copies = link > 0.0;
  return std::max(device, host * (beside_copies ? lanes.host_slowdown : 1.0));
}

double Best(std::int32_t num_misses, const std::vector<api::ExpertDemand>& misses,
            const api::LaneState& lanes) {
  double best = EndOf(0, misses, lanes);
  for (std::uint32_t bits = 1; bits < 1U << num_misses; ++bits) {
    best = std::min(best, EndOf(bits, misses, lanes));
  }
  return best;
}

std::uint32_t HostBits(const std::vector<api::MissDecision>& decisions) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    bits |= decisions[i].serving == api::ServingDecision::kHost ? 1U << i : 0U;
  }
  return bits;
}

// Copies and the host share the host's memory: two misses go to the host where a copy beside it would slow it
// down by too much.
TEST(SplitPlannerTest, KnowsWhatCopiesCostTheHost) {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = 1.5;
  lanes.device_seconds_per_expert = 0.05;
  lanes.host_seconds_per_expert = 1.0;
  lanes.host_seconds_per_row = 0.2;
  const auto on_host = [&](double slowdown, double queue) {
    lanes.host_slowdown = slowdown;
    lanes.link_queue_seconds = queue;
    const std::vector<api::ExpertDemand> misses = {{{0, 0}, 1}, {{0, 1}, 1}};
    std::vector<api::MissDecision> decisions(2);
    SplitPlanner(true, 64, 0.05).Assign(misses, {}, SplitKind::kSplit, lanes, absl::MakeSpan(decisions));
    return std::popcount(HostBits(decisions));
  };
  EXPECT_EQ(on_host(1.0, 0.0), 1);
  EXPECT_EQ(on_host(1.9, 0.0), 1);
  EXPECT_EQ(on_host(2.1, 0.0), 2);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    lanes.host_slowdown = 1.0 + base::RandomUnit(seed, 0);
    lanes.link_seconds_per_expert = 0.2 + 4.0 * base::RandomUnit(seed, 1);
    lanes.link_queue_seconds = seed % 3 == 0 ? base::RandomUnit(seed, 2) : 0.0;
    std::vector<api::ExpertDemand> misses;
    const auto count = static_cast<std::int32_t>(1 + seed % 7);
    for (std::int32_t i = 0; i < count; ++i) {
      const double rows = 4.0 * base::RandomUnit(seed, static_cast<std::uint64_t>(3 + i));
      misses.push_back({{0, i}, 1 + static_cast<std::int32_t>(rows)});
    }
    std::vector<api::MissDecision> decisions(misses.size());
    const PlannedSeconds planned =
        SplitPlanner(true, 64, 0.0).Assign(misses, {}, SplitKind::kSplit, lanes, absl::MakeSpan(decisions));
    EXPECT_NEAR(planned.split, Best(count, misses, lanes), 1e-9) << seed;
    EXPECT_NEAR(EndOf(HostBits(decisions), misses, lanes), planned.chosen, 1e-9) << seed;
    EXPECT_NEAR(EndOf((1U << count) - 1, misses, lanes), planned.host_only, 1e-9) << seed;
  }
}

// Device computing one expert: 1. A grid of link and host rates, rows a miss and hit rates (of 12 experts);
// with and without worth of later use.
TEST(SplitPlannerTest, IsAsGoodAsExhaustiveSearchOverAGrid) {
  double worst = 1.0, worst_static = 0.0;
  std::int64_t cases = 0, mixed = 0;
  for (const double link : {0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0}) {
    for (const double host : {0.5, 1.0, 2.0, 4.0, 6.0, 12.0, 24.0}) {
      for (const std::int32_t rows : {1, 2, 4, 8, 16}) {
        for (const std::int32_t num_misses : {1, 2, 3, 6, 9, 11}) {
          for (const bool reuse : {false, true}) {
            api::LaneState lanes;
            lanes.link_seconds_per_expert = link;
            lanes.device_seconds_per_expert = 1.0;
            lanes.host_seconds_per_expert = host;
            lanes.host_seconds_per_row = 0.3 * host;
            std::vector<api::ExpertDemand> misses;
            std::vector<double> saved;
            for (std::int32_t i = 0; i < num_misses; ++i) {
              const auto seed = static_cast<std::uint64_t>(cases);
              const double unit = base::RandomUnit(seed, static_cast<std::uint64_t>(2 * i));
              misses.push_back({{0, i}, 1 + static_cast<std::int32_t>(unit * 2.0 * (rows - 1) + 0.5)});
              saved.push_back(link * base::RandomUnit(seed, static_cast<std::uint64_t>(2 * i + 1)));
            }
            if (!reuse) {
              saved.clear();
            }
            SplitPlanner planner(true, 64, 0.05);
            std::vector<api::MissDecision> decisions(misses.size());
            const PlannedSeconds planned =
                planner.Assign(misses, saved, SplitKind::kSplit, lanes, absl::MakeSpan(decisions));
            const std::uint32_t all = (1U << num_misses) - 1;
            const double best = Best(num_misses, misses, lanes);
            const double end = EndOf(HostBits(decisions), misses, lanes);
            const double fixed = std::min(EndOf(0, misses, lanes), EndOf(all, misses, lanes));
            EXPECT_NEAR(planned.chosen, end, 1e-9);
            EXPECT_NEAR(planned.split, best, 1e-9);
            EXPECT_LE(end, 1.10 * best);
            EXPECT_LE(end, 1.02 * fixed);
            worst = std::max(worst, end / best);
            worst_static = std::max(worst_static, end / fixed);
            ++cases;
            mixed += HostBits(decisions) != 0 && HostBits(decisions) != all ? 1 : 0;
          }
        }
      }
    }
  }
  std::printf("split of misses: %d cases (%d mixed), worst %.3f of the best split, %.3f of the better lane\n",
              static_cast<int>(cases), static_cast<int>(mixed), worst, worst_static);
  EXPECT_GT(mixed, cases / 10);
}

TEST(SplitPlannerTest, CopiesWhatWillBeUsedAgain) {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = 1.0;
  lanes.host_seconds_per_expert = 1.0;
  const std::vector<api::ExpertDemand> misses = {{{0, 0}, 1}, {{0, 1}, 1}};
  std::vector<api::MissDecision> decisions(2);
  SplitPlanner planner(true, 8, 0.05);
  for (const std::size_t again : {std::size_t{0}, std::size_t{1}}) {
    std::vector<double> saved(2, 0.0);
    saved[again] = 0.5;
    planner.Assign(misses, saved, SplitKind::kSplit, lanes, absl::MakeSpan(decisions));
    EXPECT_EQ(decisions[again].serving, api::ServingDecision::kFetch);
    EXPECT_EQ(decisions[1 - again].serving, api::ServingDecision::kHost);
  }
}

TEST(SplitPlannerTest, SmallChangesOfARateChangeNothing) {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = 1.0;
  lanes.host_seconds_per_expert = 1.01;
  const std::vector<api::ExpertDemand> misses = {{{0, 0}, 1}};
  std::vector<api::MissDecision> decisions(1);
  SplitPlanner planner(true, 8, 0.05);
  for (const double host : {1.01, 0.99, 1.02, 0.98}) {
    lanes.host_seconds_per_expert = host;
    planner.Assign(misses, {}, SplitKind::kSplit, lanes, absl::MakeSpan(decisions));
    EXPECT_EQ(decisions[0].serving, api::ServingDecision::kFetch) << host;
  }
  lanes.host_seconds_per_expert = 0.8;
  planner.Assign(misses, {}, SplitKind::kSplit, lanes, absl::MakeSpan(decisions));
  EXPECT_EQ(decisions[0].serving, api::ServingDecision::kHost);
}

// The host lane promises 1 a step and takes 10 (another program has its cores); copying takes 2.
TEST(PlanJudgeTest, FallsBackToTheBetterLaneAndReturns) {
  PlanJudge judge(0.05);
  PlannedSeconds planned;
  planned.chosen = planned.split = 1.0;
  planned.copy_only = 2.0;
  planned.host_only = 1.5;
  double host_slowness = 10.0;
  double total = 0.0;
  const auto run = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      judge.Planned(planned);
      // All on the host is as slow as it is now; a static plan of copies keeps its promise.
      const double cost = judge.kind() == SplitKind::kCopyOnly   ? 2.0
                          : judge.kind() == SplitKind::kHostOnly ? 1.5 * host_slowness
                                                                 : host_slowness;
      total += cost;
      judge.Measured(cost);
    }
  };
  planned.host_only = 3.0;
  run(3000);
  EXPECT_TRUE(judge.fallen_back());
  EXPECT_EQ(judge.num_fallbacks(), 1U);
  EXPECT_LT(total, 3000 * 2.0 * 1.2);
  host_slowness = 1.0;
  run(2000);
  EXPECT_FALSE(judge.fallen_back());
  EXPECT_EQ(judge.kind(), SplitKind::kSplit);
}

TEST(PlanJudgeTest, StaysWithAPlanThatKeepsItsPromise) {
  PlanJudge judge(0.05);
  PlannedSeconds planned;
  planned.chosen = planned.split = 1.0;
  planned.copy_only = planned.host_only = 2.0;
  for (int i = 0; i < 5000; ++i) {
    judge.Planned(planned);
    judge.Measured(i % 3 == 0 ? 1.3 : 0.9);
    ASSERT_EQ(judge.kind(), SplitKind::kSplit);
  }
  EXPECT_EQ(judge.num_fallbacks(), 0U);
}

}  // namespace
}  // namespace comoe::routing
