// What the scheduler tells of itself. Names and buckets in one place.
#pragma once

#include "engine/base/metrics_sink.h"

namespace comoe::batching {

// References into the sink, looked up once. Thread-safe as the sink is.
struct SchedulerMetrics {
  explicit SchedulerMetrics(base::MetricsSink& sink);

  base::Gauge& requests_running;
  base::Gauge& requests_waiting;
  base::Gauge& engine_heartbeat_timestamp_seconds;
  base::Histogram& request_queue_seconds;
  base::Histogram& prefill_seconds;
  base::Histogram& decode_seconds;
  base::Histogram& step_seconds_prefill;
  base::Histogram& step_seconds_decode;
  base::Histogram& step_tokens;
  base::Counter& generated_tokens_total;
  base::Counter& prompt_tokens_computed_total;
  base::Counter& tokens_discarded_abort_total;
};

}  // namespace comoe::batching
