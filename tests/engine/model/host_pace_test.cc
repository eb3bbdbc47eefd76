#include "engine/model/host_pace.h"

#include <limits>

#include "gtest/gtest.h"

namespace comoe::model {
namespace {

api::LaneState Now(const HostPace& pace) {
  api::LaneState lanes;
  lanes.host_seconds_per_expert = 1e-3;
  lanes.host_seconds_per_row = 1e-4;
  pace.Describe(lanes);
  return lanes;
}

TEST(HostPace, BeginsWithTheRatesOfTheStart) {
  HostPace pace;
  for (int i = 0; i < 1000; ++i) {
    pace.NotMeasured();  // simulated devices stay there, to the bit
  }
  EXPECT_EQ(Now(pace).host_seconds_per_expert, 1e-3);
  EXPECT_EQ(Now(pace).host_seconds_per_row, 1e-4);
  EXPECT_EQ(Now(pace).host_slowdown, 1.0);
}

TEST(HostPace, FollowsWhatIsMeasuredAloneAndBesideCopies) {
  HostPace pace;
  for (int i = 0; i < 60; ++i) {
    pace.Measured(3e-3, 2e-3, false);
    pace.Measured(6e-3, 2e-3, true);
  }
  EXPECT_NEAR(Now(pace).host_seconds_per_expert, 1.5e-3, 1e-5);
  EXPECT_NEAR(Now(pace).host_seconds_per_row, 1.5e-4, 1e-6);
  EXPECT_NEAR(Now(pace).host_slowdown, 2.0, 0.02);
}

TEST(HostPace, CopiesNeverMakeTheHostFaster) {
  HostPace pace;
  for (int i = 0; i < 60; ++i) {
    pace.Measured(2e-3, 1e-3, false);
  }
  EXPECT_EQ(Now(pace).host_slowdown, 1.0);
}

TEST(HostPace, OneOutlierCountsLittleAndIsForgotten) {
  HostPace pace;
  pace.Measured(10.0, 1e-3, false);
  EXPECT_NEAR(Now(pace).host_seconds_per_expert, 1.7e-3, 1e-9);  // a tenth of the most that counts
  for (int i = 0; i < 3000; ++i) {
    pace.NotMeasured();
  }
  EXPECT_NEAR(Now(pace).host_seconds_per_expert, 1e-3, 1e-5);
}

TEST(HostPace, WhatIsNoTimeIsPassedOver) {
  HostPace pace;
  for (const double none : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    pace.Measured(none, 1e-3, false);
  }
  EXPECT_EQ(Now(pace).host_seconds_per_expert, 1e-3);
}

}  // namespace
}  // namespace comoe::model
