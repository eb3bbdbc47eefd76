// The yardsticks, by the protocol of the trace study, beside the numbers it published. The trace is not part
// of the repository: where it is absent the test says so and is skipped.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/routing/oracle.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_predictors.h"
#include "scheduler/routing/trace_stats.h"
#include "tests/scheduler/routing/study_trace.h"

namespace comoe::routing {
namespace {

class TraceStudyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::optional<Trace> trace = LoadStudyTrace()) {
      trace_ = new Trace(*std::move(trace));
    }
  }
  static void TearDownTestSuite() {
    delete trace_;
    trace_ = nullptr;
  }
  void SetUp() override {
    if (trace_ == nullptr) {
      GTEST_SKIP() << "no routing trace at ../shared/models/moe-64x2: nothing was compared";
    }
  }
  static std::vector<std::vector<ReplayRow>> Steps(std::int32_t batch, bool second_half) {
    const auto order = absl::MakeConstSpan(kStudyOrder).subspan(second_half ? 48 : 0);
    return LockstepRows(*trace_, order, batch, batch == 1 ? 3000 : 1'000'000);
  }

  static Trace* trace_;
};

Trace* TraceStudyTest::trace_ = nullptr;

// Decayed (.97, slots a layer) and optimal (a layer): second half. LRU: all sequences.
struct Published {
  std::int32_t batch;
  double share, lru, decayed, optimal;
};
constexpr Published kPublished[] = {
    {1, .125, .443, .551, .699},  {1, .25, .655, .718, .839},  {1, .50, .873, .879, .941},
    {4, .125, .274, .368, .537},  {4, .25, .414, .553, .717},  {4, .50, .729, .782, .890},
    {16, .125, .000, .245, .335}, {16, .25, .000, .422, .577}, {16, .50, .501, .681, .817}};

TEST_F(TraceStudyTest, YardsticksAreThePublishedOnes) {
  std::printf("batch share  lru          .97 a layer  optimal a layer  optimal pooled\n");
  for (const Published& row : kPublished) {
    const auto slots = static_cast<std::int32_t>(768 * row.share);
    const AccessLog log(*trace_, Steps(row.batch, true));
    const double decayed = DecayedHitRate(log, slots, .97, true);
    const OfflineRates optimal = OptimalHitRates(log, slots);
    const TierShape shape = trace_->Shape(slots);
    absl::StatusOr<Policy> lru = MakePolicy("lru", shape, {});
    ASSERT_TRUE(lru.ok());
    const absl::StatusOr<TimedTotals> totals =
        RunTimed(*trace_, shape, {}, {}, Steps(row.batch, false), lru->director.get());
    ASSERT_TRUE(totals.ok()) << totals.status();
    std::printf("%5d %5.3f  %.3f (%.3f)  %.3f (%.3f)  %.3f (%.3f)     %.3f\n", row.batch, row.share,
                totals->hit_rate(), row.lru, decayed, row.decayed, optimal.optimal_per_layer, row.optimal,
                optimal.optimal_pooled);
    EXPECT_NEAR(totals->hit_rate(), row.lru, .01);
    EXPECT_NEAR(decayed, row.decayed, .01);
    EXPECT_NEAR(optimal.optimal_per_layer, row.optimal, .01);
    EXPECT_GE(optimal.optimal_pooled, optimal.optimal_per_layer - .01);
  }
}

TEST_F(TraceStudyTest, RecallIsThePublishedOne) {
  const auto steps = LockstepRows(*trace_, absl::MakeConstSpan(kStudyOrder), 1, 1'000'000);
  const std::vector<ForecastQuality> gate = JudgeRecordedLookahead(*trace_, steps, {2, 4});
  ASSERT_EQ(gate.size(), 3U);
  constexpr double kGate[3][2] = {{.767, .910}, {.674, .838}, {.602, .770}};
  for (std::size_t d = 0; d < 3; ++d) {
    EXPECT_NEAR(gate[d].recall[0], kGate[d][0], .001);
    EXPECT_NEAR(gate[d].recall[1], kGate[d][1], .001);
  }
  const auto window = MakeTracePredictor("window", trace_->Shape(0));
  ASSERT_TRUE(window.ok());
  // The study does not say in which order it took the texts, and a window reaches over their ends: near
  // enough.
  std::vector<std::int32_t> in_order(96);
  std::iota(in_order.begin(), in_order.end(), 0);
  const auto judged = JudgePredictor(*trace_, {}, LockstepRows(*trace_, in_order, 1, 1'000'000),
                                     {{2, 4, 8}, 1, {}}, window->get());
  std::printf("window: %.3f (.252) %.3f (.369) %.3f (.518)\n", judged[0].recall[0], judged[0].recall[1],
              judged[0].recall[2]);
  EXPECT_NEAR(judged[0].recall[0], .252, .03);
  EXPECT_NEAR(judged[0].recall[1], .369, .03);
  EXPECT_NEAR(judged[0].recall[2], .518, .03);
}

}  // namespace
}  // namespace comoe::routing
