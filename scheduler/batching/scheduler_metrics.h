// What the scheduler tells of itself. Names and buckets in one place.
#pragma once

#include "engine/base/metrics_sink.h"

namespace comoe::batching {

// References into the sink, looked up once. Thread-safe as the sink is.
struct SchedulerMetrics {
  explicit SchedulerMetrics(base::MetricsSink& sink);

  base::Gauge& requests_running;
  base::Gauge& requests_waiting;
  base::Gauge& requests_waiting_tokens;
  base::Gauge& kv_blocks_used;
  base::Gauge& kv_blocks_cached;
  base::Gauge& kv_blocks_free;
  base::Gauge& kv_usage_ratio;
  base::Gauge& engine_heartbeat_timestamp_seconds;
  base::Histogram& request_queue_seconds;
  base::Histogram& prefill_seconds;
  base::Histogram& decode_seconds;
  base::Histogram& step_seconds_prefill;
  base::Histogram& step_seconds_decode;
  base::Histogram& step_tokens;
  base::Histogram& step_sequences;
  base::Counter& busy_seconds_compute;
  base::Counter& busy_seconds_expert_stall;
  base::Counter& busy_seconds_sched;
  base::Counter& busy_seconds_idle;
  base::Counter& generated_tokens_total;
  base::Counter& prompt_tokens_computed_total;
  base::Counter& prompt_tokens_cached_total;
  base::Counter& prefix_cache_lookup_tokens_total;
  base::Counter& prefix_cache_hit_tokens_total;
  base::Counter& preemptions_total;
  base::Counter& tokens_discarded_abort_total;
  base::Counter& tokens_discarded_preempt_total;
};

}  // namespace comoe::batching
