#include "server/metrics_exporter.h"

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "engine/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/request_metrics.h"
#include "tests/support/recording_metrics.h"

namespace comoe::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(MetricsExporter, ShowsWhatItWasGiven) {
  MetricsExporter exporter;
  exporter.AddCounter("requests_total", "Requests.", {{"code", "OK"}}).Increment(3);
  exporter.AddGauge("depth", "Depth.", {}).Set(-2);
  exporter.AddHistogram("wait_seconds", "Wait.", {}, {0.1, 1}).Observe(0.5);
  const std::string text = exporter.Render();
  EXPECT_THAT(text, HasSubstr("# TYPE comoe_requests_total counter"));
  EXPECT_THAT(text, HasSubstr("comoe_requests_total{code=\"OK\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("comoe_depth -2\n"));
  EXPECT_THAT(text, HasSubstr("comoe_wait_seconds_bucket{le=\"0.1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("comoe_wait_seconds_bucket{le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("process_resident_memory_bytes"));
  EXPECT_THAT(text, HasSubstr("process_open_fds"));
}

TEST(MetricsExporter, SameNameAndLabelsAreOneMetric) {
  MetricsExporter exporter;
  base::Counter& first = exporter.AddCounter("x_total", "X.", {{"a", "1"}, {"b", "2"}});
  base::Counter& again = exporter.AddCounter("x_total", "X.", {{"b", "2"}, {"a", "1"}});
  EXPECT_EQ(&first, &again);
  EXPECT_NE(&first, &exporter.AddCounter("x_total", "X.", {{"a", "1"}, {"b", "3"}}));
}

TEST(MetricsExporter, WhatIsNotFiniteIsDropped) {
  MetricsExporter exporter;
  base::Counter& counter = exporter.AddCounter("c_total", "C.", {});
  base::Gauge& gauge = exporter.AddGauge("g", "G.", {});
  base::Histogram& histogram = exporter.AddHistogram("h", "H.", {}, {1});
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    counter.Increment(bad);
    gauge.Set(bad);
    gauge.Add(bad);
    histogram.Observe(bad);
  }
  counter.Increment(-1);
  counter.Increment(2);
  gauge.Set(1);
  histogram.Observe(0.5);
  const std::string text = exporter.Render();
  EXPECT_THAT(text, HasSubstr("comoe_c_total 2\n"));
  EXPECT_THAT(text, HasSubstr("comoe_g 1\n"));
  EXPECT_THAT(text, HasSubstr("comoe_h_count 1\n"));
  EXPECT_THAT(text, HasSubstr("comoe_h_sum 0.5\n"));
}

TEST(MetricsExporter, LabelValuesAreMadeValidUtf8) {
  MetricsExporter exporter;
  exporter.AddGauge("model_info", "M.", {{"model", "bad\xFF\xC3 \"quoted\"\n"}}).Set(1);
  const std::string text = exporter.Render();
  EXPECT_TRUE(tokenizer::IsValidUtf8(text));
  EXPECT_THAT(text, HasSubstr("bad\xEF\xBF\xBD\xEF\xBF\xBD \\\"quoted\\\"\\n"));
}

TEST(MetricsExporter, NamesThatSpoilAScrapeAreKnown) {
  EXPECT_TRUE(IsMetricName("requests_total"));
  EXPECT_TRUE(IsLabelName("finish_reason"));
  for (const char* name : {"", "9lives", "with space", "comoe:x", "caf\xC3\xA9"}) {
    EXPECT_FALSE(IsMetricName(name)) << name;
    EXPECT_FALSE(IsLabelName(name)) << name;
  }
  for (const char* name : {"le", "quantile", "__name__"}) {
    EXPECT_FALSE(IsLabelName(name)) << name;
  }
}

TEST(MetricsExporter, SeriesOfANameAreBounded) {
  MetricsExporter exporter;
  for (std::size_t i = 0; i < MetricsExporter::kMaxSeriesPerName + 50; ++i) {
    exporter.AddCounter("many_total", "Many.", {{"i", std::to_string(i)}}).Increment();
  }
  const std::string text = exporter.Render();
  EXPECT_THAT(text, HasSubstr("i=\"999\""));
  EXPECT_THAT(text, Not(HasSubstr("i=\"1000\"")));
}

TEST(MetricsExporter, AThreadAtATimeIsNotNeeded) {
  MetricsExporter exporter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&exporter] {
      for (int n = 0; n < 500; ++n) {
        exporter.AddCounter("shared_total", "Shared.", {{"n", std::to_string(n % 7)}}).Increment();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(exporter.Render(), HasSubstr("comoe_shared_total{n=\"0\"} 288\n"));
}

TEST(MetricsExporter, ATakenPortIsAnErrorThatNamesIt) {
  MetricsExporter first;
  ASSERT_TRUE(first.Listen("127.0.0.1:0").ok());
  MetricsExporter second;
  const absl::Status status = second.Listen(first.address());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(first.address()));
}

TEST(RequestMetrics, EveryEndIsCountedOnce) {
  testing::RecordingMetrics sink;
  RequestMetrics metrics(sink);
  Terminal refused;
  refused.method = Method::kGenerateStream;
  refused.code = absl::StatusCode::kInvalidArgument;
  refused.rejection = Rejection::kTooLong;
  metrics.RecordTerminal(refused);
  Terminal done;
  done.method = Method::kGenerate;
  done.finish_reason = batching::FinishReason::kMaxTokens;
  done.elapsed = absl::Seconds(2);
  done.per_output_token = absl::Milliseconds(5);
  metrics.RecordTerminal(done);
  metrics.RecordTerminal(done);
  EXPECT_EQ(sink.Value(
                "requests_total{code=\"INVALID_ARGUMENT\",finish_reason=\"none\",method=\"GenerateStream\"}"),
            1);
  EXPECT_EQ(sink.Value("requests_total{code=\"OK\",finish_reason=\"max_tokens\",method=\"Generate\"}"), 2);
  EXPECT_EQ(sink.Value("request_rejections_total{reason=\"too_long\"}"), 1);
  EXPECT_EQ(sink.Observations("e2e_seconds").size(), 2U);
  EXPECT_EQ(sink.Observations("time_per_output_token_seconds").size(), 2U);
}

TEST(RequestMetrics, EveryRefusalHasAReason) {
  const auto reason = [](absl::StatusCode code, Phase phase) {
    return RejectionOf(absl::Status(code, "why"), phase);
  };
  EXPECT_EQ(reason(absl::StatusCode::kUnavailable, Phase::kLoading), Rejection::kLoading);
  EXPECT_EQ(reason(absl::StatusCode::kUnavailable, Phase::kServing), Rejection::kDraining);
  EXPECT_EQ(reason(absl::StatusCode::kResourceExhausted, Phase::kServing), Rejection::kQueueFull);
  EXPECT_EQ(reason(absl::StatusCode::kAlreadyExists, Phase::kServing), Rejection::kDuplicateId);
  EXPECT_EQ(reason(absl::StatusCode::kCancelled, Phase::kServing), Rejection::kNone);
}

}  // namespace
}  // namespace comoe::server
