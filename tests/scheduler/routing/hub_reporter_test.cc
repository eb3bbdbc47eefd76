#include "scheduler/routing/hub_reporter.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recording_metrics.h"

namespace comoe::routing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

HubReport First() {
  HubReport report;
  report.prefetching = true;
  report.look_ahead = 2;
  report.most_look_ahead = 2;
  return report;
}

std::string Logged(HubReporter& reporter, const HubReport& report) {
  ::testing::internal::CaptureStderr();
  reporter.Update(report);
  return ::testing::internal::GetCapturedStderr();
}

TEST(HubReporterTest, MetricsSayWhatTheReportSays) {
  testing::RecordingMetrics metrics;
  HubReporter reporter(metrics, First());
  HubReport report = First();
  report.distances[1] = {true, 0.75, 12, 6, 2};
  report.distances[2] = {false, 0.25, 4, 1, 3};
  report.hinted = 5;
  report.kept_behind = 7;
  report.fallen_back = true;
  report.fallbacks = 2;
  report.look_ahead = 1;
  report.late_forecasts = 9;
  report.dropped_observations = 3;
  report.warm = true;
  for (int again = 0; again < 2; ++again) {  // sums are sums
    reporter.Update(report);
    EXPECT_EQ(metrics.Value("hub_prefetch_on{ahead=\"1\"}"), 1);
    EXPECT_EQ(metrics.Value("hub_prefetch_on{ahead=\"2\"}"), 0);
    EXPECT_EQ(metrics.Value("hub_prefetch_precision_ratio{ahead=\"1\"}"), 0.75);
    EXPECT_EQ(metrics.Value("hub_guesses_total{ahead=\"1\"}"), 12);
    EXPECT_EQ(metrics.Value("hub_guess_outcomes_total{ahead=\"1\",outcome=\"right\"}"), 6);
    EXPECT_EQ(metrics.Value("hub_guess_outcomes_total{ahead=\"2\",outcome=\"wrong\"}"), 3);
    EXPECT_EQ(metrics.Value("hub_prefetching"), 1);
    EXPECT_EQ(metrics.Value("hub_hinted_orders_total"), 5);
    EXPECT_EQ(metrics.Value("hub_kept_behind_total"), 7);
    EXPECT_EQ(metrics.Value("hub_fallback_active"), 1);
    EXPECT_EQ(metrics.Value("hub_fallbacks_total"), 2);
    EXPECT_EQ(metrics.Value("hub_look_ahead_layers"), 1);
    EXPECT_EQ(metrics.Value("hub_late_forecasts_total"), 9);
    EXPECT_EQ(metrics.Value("hub_dropped_observations_total"), 3);
    EXPECT_EQ(metrics.Value("hub_warm"), 1);
  }
  EXPECT_THAT(metrics.Series(), Not(::testing::Contains(HasSubstr("ahead=\"3\"")))) << "out of reach";
}

TEST(HubReporterTest, AChangeIsLoggedOnce) {
  testing::RecordingMetrics metrics;
  HubReporter reporter(metrics, First());
  HubReport report = First();
  EXPECT_THAT(Logged(reporter, report), IsEmpty());
  report.prefetching = false;
  EXPECT_THAT(Logged(reporter, report), HasSubstr("hub: prefetch stopped"));
  EXPECT_THAT(Logged(reporter, report), IsEmpty());
  report.prefetching = true;
  EXPECT_THAT(Logged(reporter, report), HasSubstr("prefetch goes on"));
  report.fallen_back = true;
  report.copies_all = true;
  EXPECT_THAT(Logged(reporter, report), HasSubstr("fell back: all misses are copied"));
  report.copies_all = false;  // the split is on trial again
  EXPECT_THAT(Logged(reporter, report), IsEmpty());
  report.fallen_back = false;
  EXPECT_THAT(Logged(reporter, report), HasSubstr("split between link and host again"));
  report.fallen_back = true;
  EXPECT_THAT(Logged(reporter, report), HasSubstr("fell back: the host computes all misses"));
  report.look_ahead = 0;
  EXPECT_THAT(Logged(reporter, report), HasSubstr("look-ahead: 0 layers from now on, of 2"));
  EXPECT_THAT(Logged(reporter, report), IsEmpty());
}

TEST(HubReporterTest, TheDirectorAroundTheHubReportsAfterEachStep) {
  TierShape shape;
  shape.num_layers = 2;
  shape.moe_layers = {0, 1};
  shape.num_experts = 8;
  shape.experts_per_token = 2;
  shape.device_slots = 4;
  PolicyOptions options;
  options.hub.hysteresis = 0.0;
  auto hub = std::make_unique<HubDirector>(shape, options);
  const HubDirector& seen = *hub;
  testing::RecordingMetrics metrics;
  const auto director = MakeReportingDirector(std::move(hub), seen, metrics);
  EXPECT_EQ(director->policy(), "hub");
  EXPECT_EQ(metrics.Value("hub_look_ahead_layers"), 2);
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < LookaheadBudget::kPatience * LookaheadBudget::kWindowSteps; ++step) {
    director->ObserveStepTime({1.0, 0.0, 0.1});
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("look-ahead: 0 layers"));
  EXPECT_EQ(metrics.Value("hub_look_ahead_layers"), 0);
  EXPECT_EQ(director->lookahead(), 0);
}

}  // namespace
}  // namespace comoe::routing
