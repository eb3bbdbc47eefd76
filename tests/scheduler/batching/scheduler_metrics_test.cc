#include "scheduler/batching/scheduler_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/recording_metrics.h"

namespace comoe::batching {
namespace {

TEST(SchedulerMetricsTest, TheSeriesBoardsRelyOn) {
  testing::RecordingMetrics sink;
  SchedulerMetrics metrics(sink);
  EXPECT_THAT(
      sink.Series(),
      ::testing::UnorderedElementsAre(
          "requests_running", "requests_waiting", "engine_heartbeat_timestamp_seconds",
          "request_queue_seconds", "prefill_seconds", "decode_seconds", "step_seconds{phase=\"prefill\"}",
          "step_seconds{phase=\"decode\"}", "step_tokens", "generated_tokens_total",
          "prompt_tokens_total{source=\"computed\"}", "tokens_discarded_total{reason=\"abort\"}"));
}

}  // namespace
}  // namespace comoe::batching
