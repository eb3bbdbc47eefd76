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
          "step_seconds{phase=\"decode\"}", "step_tokens", "step_sequences", "generated_tokens_total",
          "prompt_tokens_total{source=\"computed\"}", "prompt_tokens_total{source=\"prefix_cached\"}",
          "tokens_discarded_total{reason=\"abort\"}", "tokens_discarded_total{reason=\"preempt_recompute\"}",
          "requests_waiting_tokens", "kv_blocks{state=\"used\"}", "kv_blocks{state=\"cached\"}",
          "kv_blocks{state=\"free\"}", "kv_usage_ratio", "prefix_cache_lookup_tokens_total",
          "prefix_cache_hit_tokens_total", "preemptions_total{kind=\"recompute\"}",
          "engine_busy_seconds_total{kind=\"compute\"}", "engine_busy_seconds_total{kind=\"sched\"}",
          "engine_busy_seconds_total{kind=\"idle\"}", "engine_busy_seconds_total{kind=\"expert_stall\"}"));
}

}  // namespace
}  // namespace comoe::batching
