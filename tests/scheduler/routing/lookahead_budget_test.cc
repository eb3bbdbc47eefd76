#include "scheduler/routing/lookahead_budget.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace comoe::routing {
namespace {

constexpr double kLimit = 0.02;

// A device on which each layer ahead takes `cost` of a step that takes 1 without any.
struct Device {
  LookaheadBudget budget{2, kLimit, 0.1};
  double cost = 0.0;
  std::int64_t steps_at[3] = {};

  void Run(std::int64_t windows) {
    for (std::int64_t i = 0; i < windows * LookaheadBudget::kWindowSteps; ++i) {
      const double ahead = cost * static_cast<double>(budget.width());
      ++steps_at[budget.width()];
      budget.Observe(1.0 + ahead, ahead);
    }
  }
};

TEST(LookaheadBudgetTest, CheapStaysAsItWasSet) {
  Device device;
  device.cost = 0.009;
  device.Run(1000);
  EXPECT_EQ(device.budget.width(), 2);
  EXPECT_EQ(device.steps_at[2], 1000 * LookaheadBudget::kWindowSteps);
  EXPECT_NEAR(device.budget.share(), 0.018 / 1.018, 1e-9);
}

TEST(LookaheadBudgetTest, ShortSpellsAreNoReason) {
  Device device;
  for (int spell = 0; spell < 20; ++spell) {
    device.cost = 0.5;
    device.Run(LookaheadBudget::kPatience - 1);
    device.cost = 0.001;
    device.Run(1);
  }
  EXPECT_EQ(device.budget.width(), 2);
}

TEST(LookaheadBudgetTest, IsCutToWhatFits) {
  Device device;
  device.cost = 0.015;  // one layer fits, two do not
  device.Run(LookaheadBudget::kPatience);
  EXPECT_EQ(device.budget.width(), 1);
  device.Run(10000);
  EXPECT_EQ(device.budget.width(), 1);
  EXPECT_EQ(device.steps_at[2], LookaheadBudget::kPatience * LookaheadBudget::kWindowSteps)
      << "what one layer takes says that two do not fit: no trial";
  EXPECT_LE(device.budget.share(), kLimit);
}

TEST(LookaheadBudgetTest, DearIsTriedMoreAndMoreRarely) {
  Device device;
  device.cost = 0.2;
  device.Run(LookaheadBudget::kPatience);
  EXPECT_EQ(device.budget.width(), 0);
  device.steps_at[1] = 0;
  device.Run(4096);
  EXPECT_EQ(device.budget.width(), 0);
  const std::int64_t trials = device.steps_at[1] / LookaheadBudget::kWindowSteps;
  EXPECT_GE(trials, 5);
  EXPECT_LE(trials, 9) << "each waits twice as long as the one before";
}

TEST(LookaheadBudgetTest, ComesBackWithRoomToSpareOnly) {
  Device device;
  device.cost = 0.2;
  device.Run(LookaheadBudget::kPatience);
  ASSERT_EQ(device.budget.width(), 0);
  device.cost = 0.0196;  // below the limit, but not by a tenth
  device.Run(200);
  EXPECT_EQ(device.budget.width(), 0);
  device.cost = 0.004;
  device.Run(2000);
  EXPECT_EQ(device.budget.width(), 2);
}

TEST(LookaheadBudgetTest, NoLimitAndNoMeasurementNoCut) {
  LookaheadBudget unlimited(3, 1.0, 0.1);
  LookaheadBudget unmeasured(3, kLimit, 0.1);
  for (int i = 0; i < 10000; ++i) {
    unlimited.Observe(1.0, 0.9);
    unmeasured.Observe(1.0, 0.0);
  }
  EXPECT_EQ(unlimited.width(), 3);
  EXPECT_EQ(unmeasured.width(), 3);
}

}  // namespace
}  // namespace comoe::routing
