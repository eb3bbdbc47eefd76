// Where predictors run, and when look-ahead is worth its time.
#include "scheduler/routing/moving_forecaster.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/replay.h"
#include "scheduler/routing/score_judge.h"

namespace comoe::routing {
namespace {

constexpr double kStepSeconds = 0.1;

TierShape Shape() {
  TierShape shape;
  shape.num_layers = 4;
  shape.moe_layers = {0, 1, 2, 3};
  shape.num_experts = 16;
  shape.experts_per_token = 2;
  shape.device_slots = 20;
  return shape;
}

// Takes its time on a clock of the test's; counts what it has learnt.
class TimedPredictor final : public RowPredictor {
 public:
  TimedPredictor(double seconds, double* now) : seconds_(seconds), now_(*now) {}
  absl::string_view name() const override { return "timed"; }
  void BeginStep(absl::Span<const base::TokenId> /*tokens*/) override { ++steps_; }
  void Observe(std::int32_t /*layer*/, absl::Span<const std::int32_t> /*experts*/) override {}
  void Forecast(std::int32_t /*target*/, absl::Span<float> probabilities) override {
    if (timed_) {
      now_ += seconds_;
    }
    std::fill(probabilities.begin(), probabilities.end(), 0.25F);
  }
  void Append(std::vector<std::uint8_t>* bytes) const override {
    bytes->push_back(static_cast<std::uint8_t>(steps_));
  }
  void StopTiming() { timed_ = false; }

 private:
  const double seconds_;
  double& now_;
  bool timed_ = true;
  std::uint64_t steps_ = 0;
};

// A step of four layers, a forecast each.
void Step(DemandForecaster& forecaster, double* now) {
  forecaster.BeginStep({7});
  for (std::int32_t layer = 0; layer < 4; ++layer) {
    *now += kStepSeconds / 4;
    forecaster.Observe(layer, {1, 2});
    if (layer < 3) {
      forecaster.Forecast(layer + 1);
    }
  }
}

TEST(MovingForecasterTest, StaysWhereItIsCheap) {
  double now = 0.0;
  const auto forecaster = MakeMovingForecaster(
      Shape(), std::make_shared<TimedPredictor>(0.005 * kStepSeconds, &now), 0, [&now] { return now; });
  for (int i = 0; i < 10 * kPredictorWindowSteps; ++i) {
    Step(*forecaster, &now);
  }
  EXPECT_FALSE(forecaster->on_own_thread());
  EXPECT_EQ(forecaster->num_late(), 0U);
}

TEST(MovingForecasterTest, MovesWhatTakesTooLongAndLosesNothingItLearnt) {
  double now = 0.0;
  auto predictor = std::make_shared<TimedPredictor>(0.1 * kStepSeconds, &now);
  const auto forecaster = MakeMovingForecaster(Shape(), predictor, 0, [&now] { return now; });
  for (int i = 0; i < kPredictorWindowSteps; ++i) {
    Step(*forecaster, &now);
  }
  EXPECT_FALSE(forecaster->on_own_thread()) << "one window may be bad luck";
  for (int i = 0; i < kPredictorWindowSteps; ++i) {
    Step(*forecaster, &now);
  }
  predictor->StopTiming();  // on its thread the test's clock is not its to move
  Step(*forecaster, &now);
  EXPECT_TRUE(forecaster->on_own_thread());
  std::vector<std::uint8_t> bytes;
  forecaster->Append(&bytes);
  EXPECT_EQ(bytes, std::vector<std::uint8_t>{2 * kPredictorWindowSteps + 1}) << "steps that it has seen";
}

TEST(MovingForecasterTest, TheIdleTimeBetweenStepsIsNotTheirs) {
  double now = 0.0;
  auto predictor = std::make_shared<TimedPredictor>(0.1 * kStepSeconds, &now);
  const auto forecaster = MakeMovingForecaster(Shape(), predictor, 0, [&now] { return now; });
  for (int i = 0; i < 2 * kPredictorWindowSteps; ++i) {
    Step(*forecaster, &now);
    now += 100.0;
  }
  predictor->StopTiming();
  Step(*forecaster, &now);
  EXPECT_TRUE(forecaster->on_own_thread());
}

TEST(MovingForecasterTest, TheHubReportsWhereItsPredictorRuns) {
  PolicyOptions options;
  ASSERT_EQ(options.hub.predictor_thread, 2.0);
  EXPECT_FALSE(HubDirector(Shape(), options).report().predictor_on_thread) << "virtual time: it stays";
  options.hub.predictor_thread = 1;
  EXPECT_TRUE(HubDirector(Shape(), options).report().predictor_on_thread);
}

// Steps with a second of look-ahead each, where it is on, until it is switched off or on; at most 10,000.
int StepsUntil(bool on, ScoreJudge& judge, double saved) {
  int steps = 0;
  while (judge.on() != on && steps < 10000) {
    const bool works = judge.on();
    judge.Observe(works ? 1.0 : 0.0, works ? saved : 0.0, 100.0);
    ++steps;
  }
  return steps;
}

TEST(ScoreJudgeTest, StopsWhatDoesNotPayAndTriesAgainMoreAndMoreRarely) {
  ScoreJudge judge(0.1);
  ASSERT_TRUE(judge.on());
  EXPECT_LE(StepsUntil(false, judge, 0.0), 5) << "a cold start has little credit";
  int wait = StepsUntil(true, judge, 0.0);
  EXPECT_EQ(wait, ScoreJudge::kFirstWait);
  for (int trial = 0; trial < 3; ++trial) {
    const int steps = StepsUntil(false, judge, 0.0);
    EXPECT_GT(steps, 5);
    EXPECT_LT(steps, 15);
    const int next = StepsUntil(true, judge, 0.0);
    EXPECT_EQ(next, 2 * wait);
    wait = next;
  }
}

TEST(ScoreJudgeTest, KeepsWhatPaysAndLetsGoOfWhatDoesSoNoLonger) {
  ScoreJudge judge(0.1);
  EXPECT_EQ(StepsUntil(false, judge, 1.5), 10000);
  EXPECT_LT(StepsUntil(false, judge, 0.5), 100);
  EXPECT_EQ(StepsUntil(true, judge, 0.0), ScoreJudge::kFirstWait) << "it did pay: tried again soon";
}

TEST(ScoreJudgeTest, KeepsWhatIsFree) {
  ScoreJudge judge(0.1);
  for (int i = 0; i < 100; ++i) {
    judge.Observe(0.0, -1.0, 10.0);
  }
  EXPECT_TRUE(judge.on());
}

TEST(ScoreJudgeTest, DoesNotTryWhereNobodyWaits) {
  ScoreJudge judge(0.1);
  for (int i = 0; i < 30; ++i) {
    judge.Observe(1.0, 1.5, 10.0);
  }
  EXPECT_TRUE(judge.on());
  for (int i = 0; i < 50; ++i) {
    judge.Observe(judge.on() ? 1.0 : 0.0, 0.0, 0.5);
  }
  EXPECT_FALSE(judge.on()) << "half a second of waiting cannot pay for a whole one";
  for (int i = 0; i < 50; ++i) {
    judge.Observe(judge.on() ? 1.0 : 0.0, 1.5, 10.0);
  }
  EXPECT_TRUE(judge.on()) << "they wait again";
}

}  // namespace
}  // namespace comoe::routing
