#include <cmath>
#include <cstdint>
#include <deque>
#include <vector>

#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/predictor.h"
#include "scheduler/routing/step_rows.h"
#include "scheduler/routing/window_predictor.h"

namespace comoe::routing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::IsEmpty;

TierShape Shape(std::int32_t num_layers, std::int32_t num_experts, std::int32_t k) {
  TierShape shape;
  shape.num_layers = num_layers;
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    shape.moe_layers.push_back(layer);
  }
  shape.num_experts = num_experts;
  shape.experts_per_token = k;
  return shape;
}

TEST(WindowPredictorTest, CountsTheLastRowsOfEachLayer) {
  constexpr std::int32_t kExperts = 5;
  WindowPredictor window(Shape(2, kExperts, 2), 7);
  std::vector<std::deque<std::int32_t>> rows(2);  // flat, two ids a row
  for (std::uint64_t i = 0; i < 300; ++i) {
    const auto layer = static_cast<std::size_t>(base::RandomBits(1, 50 * i) % 2);
    const std::uint64_t num_rows = base::RandomBits(1, 50 * i + 1) % 12;  // more than the window, too
    std::vector<std::int32_t> experts;
    for (std::uint64_t j = 0; j < 2 * num_rows; ++j) {
      experts.push_back(static_cast<std::int32_t>(base::RandomBits(1, 50 * i + 2 + j) % kExperts));
    }
    window.Observe(static_cast<std::int32_t>(layer), experts);
    rows[layer].insert(rows[layer].end(), experts.begin(), experts.end());
    while (rows[layer].size() > 14) {
      rows[layer].pop_front();
    }
    for (std::size_t l = 0; l < 2; ++l) {
      std::vector<std::int32_t> expected(kExperts, 0);
      for (const std::int32_t expert : rows[l]) {
        ++expected[static_cast<std::size_t>(expert)];
      }
      ASSERT_THAT(window.counts(static_cast<std::int32_t>(l)), ::testing::ElementsAreArray(expected));
      ASSERT_EQ(window.num_rows(static_cast<std::int32_t>(l)), static_cast<std::int32_t>(rows[l].size() / 2));
    }
  }
}

TEST(WindowPredictorTest, ForecastsShareOfRowsHeld) {
  WindowPredictor window(Shape(1, 4, 1), 100);
  std::vector<float> probabilities(4, -1.0F);
  window.Forecast(0, absl::MakeSpan(probabilities));
  EXPECT_THAT(probabilities, ElementsAre(0.0F, 0.0F, 0.0F, 0.0F));
  window.Observe(0, {2, 2, 1, 2});
  window.Forecast(0, absl::MakeSpan(probabilities));
  EXPECT_THAT(probabilities, ElementsAre(0.0F, 0.25F, 0.75F, 0.0F));
}

TEST(DecayedCountsTest, AgreesWithMultiplyingEachStepAndSurvivesManySteps) {
  constexpr std::int32_t kExperts = 4;
  constexpr double kDecay = 0.5;  // leaves the range of double after a thousand steps
  DecayedCounts counts(Shape(1, kExperts, 1), kDecay);
  std::vector<double> step_uses(kExperts, 0.0);
  std::vector<double> row_uses(kExperts, 0.0);
  double rows = 0.0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const std::vector<std::int32_t> experts = {static_cast<std::int32_t>(base::RandomBits(3, 2 * i) % 3),
                                               static_cast<std::int32_t>(base::RandomBits(3, 2 * i + 1) % 3)};
    counts.Observe(0, experts);
    rows = rows * kDecay + 2.0;
    std::vector<float> probabilities(kExperts);
    counts.Forecast(0, absl::MakeSpan(probabilities));
    for (std::int32_t e = 0; e < kExperts; ++e) {
      const auto at = static_cast<std::size_t>(e);
      const int uses = (experts[0] == e ? 1 : 0) + (experts[1] == e ? 1 : 0);
      row_uses[at] = row_uses[at] * kDecay + uses;
      step_uses[at] = step_uses[at] * kDecay + (uses > 0 ? 1 : 0);
      ASSERT_NEAR(counts.StepUses({0, e}), step_uses[at], 1e-9);
      ASSERT_NEAR(static_cast<double>(probabilities[at]), row_uses[at] / rows, 1e-6);
    }
  }
}

TEST(MostLikelyTest, TheLikeliestFirstAndNoneThatIsImpossible) {
  std::vector<std::int32_t> experts;
  MostLikely({0.1F, 0.0F, 0.5F, 0.1F, 0.2F}, 3, &experts);
  EXPECT_THAT(experts, ElementsAre(2, 4, 0));
  MostLikely({0.1F, 0.0F, 0.5F, 0.1F, 0.2F}, 9, &experts);
  EXPECT_THAT(experts, ElementsAre(2, 4, 0, 3));
  MostLikely({}, 2, &experts);
  EXPECT_THAT(experts, IsEmpty());
}

api::PlanSpan Span(std::int64_t position, std::size_t rows) {
  api::PlanSpan span;
  span.start_position = position;
  span.tokens.resize(rows);
  return span;
}

TEST(StepRowsTest, LearnsFromDecodesAndFromPrefillOnlyBeforeAnyDecode) {
  StepRows rows(2);
  api::StepPlan plan;
  plan.spans = {Span(0, 1), Span(4, 2)};
  const std::vector<std::int32_t> experts = {1, 2, 3};
  api::RoutingObservation observation;
  observation.experts_per_token = 1;
  observation.experts = experts;
  rows.BeginStep(plan);
  EXPECT_FALSE(rows.is_decode(0)) << "a prompt of one token";
  EXPECT_THAT(rows.Learnable(observation), ElementsAre(2, 3)) << "the last two";

  plan.spans = {Span(4, 1), Span(0, 2)};
  rows.BeginStep(plan);
  EXPECT_TRUE(rows.is_decode(0));
  EXPECT_FALSE(rows.is_decode(1));
  EXPECT_THAT(rows.Learnable(observation), ElementsAre(1));

  plan.spans = {Span(0, 3)};
  rows.BeginStep(plan);
  EXPECT_THAT(rows.Learnable(observation), IsEmpty());
}

}  // namespace
}  // namespace comoe::routing
