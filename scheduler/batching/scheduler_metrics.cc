#include "scheduler/batching/scheduler_metrics.h"

#include <vector>

namespace comoe::batching {
namespace {

std::vector<double> StageBuckets() {
  return {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640};
}

// first, first * factor, ...
std::vector<double> GeometricBuckets(double first, double factor, int count) {
  std::vector<double> buckets;
  for (int i = 0; i < count; ++i, first *= factor) {
    buckets.push_back(first);
  }
  return buckets;
}

base::Histogram& StepSeconds(base::MetricsSink& sink, const char* phase) {
  return sink.AddHistogram("step_seconds",
                           "Time of one step of the engine; prefill if any row belongs to a prompt",
                           {{"phase", phase}}, GeometricBuckets(.001, 1.6, 20));
}

base::Gauge& KvBlocks(base::MetricsSink& sink, const char* state) {
  return sink.AddGauge(
      "kv_blocks",
      "Blocks of KV memory: held by running requests, free but of use to requests that begin "
      "alike, or free",
      {{"state", state}});
}

base::Counter& BusySeconds(base::MetricsSink& sink, const char* kind) {
  return sink.AddCounter("engine_busy_seconds_total",
                         "What the engine thread spent its time on; sums to wall time", {{"kind", kind}});
}

}  // namespace

SchedulerMetrics::SchedulerMetrics(base::MetricsSink& sink)
    : requests_running(sink.AddGauge("requests_running", "Requests whose rows are being computed", {})),
      requests_waiting(sink.AddGauge("requests_waiting", "Requests accepted and not running", {})),
      requests_waiting_tokens(sink.AddGauge(
          "requests_waiting_tokens", "Tokens of waiting requests whose rows are still to be computed", {})),
      kv_blocks_used(KvBlocks(sink, "used")),
      kv_blocks_cached(KvBlocks(sink, "cached")),
      kv_blocks_free(KvBlocks(sink, "free")),
      kv_usage_ratio(
          sink.AddGauge("kv_usage_ratio", "Share of the KV blocks that running requests hold", {})),
      engine_heartbeat_timestamp_seconds(
          sink.AddGauge("engine_heartbeat_timestamp_seconds",
                        "Unix time when the engine thread was last seen making progress", {})),
      request_queue_seconds(sink.AddHistogram(
          "request_queue_seconds",
          "Time from acceptance to the first step, or to the end of a request that never ran", {},
          StageBuckets())),
      prefill_seconds(sink.AddHistogram(
          "prefill_seconds", "Time from a request's first step to its first token", {}, StageBuckets())),
      decode_seconds(sink.AddHistogram("decode_seconds", "Time from a request's first token to its last", {},
                                       StageBuckets())),
      step_seconds_prefill(StepSeconds(sink, "prefill")),
      step_seconds_decode(StepSeconds(sink, "decode")),
      step_tokens(
          sink.AddHistogram("step_tokens", "Rows of one step of the engine", {}, GeometricBuckets(1, 2, 15))),
      step_sequences(sink.AddHistogram("step_sequences", "Sequences of one step of the engine", {},
                                       GeometricBuckets(1, 2, 11))),
      busy_seconds_compute(BusySeconds(sink, "compute")),
      busy_seconds_expert_stall(BusySeconds(sink, "expert_stall")),
      busy_seconds_sched(BusySeconds(sink, "sched")),
      busy_seconds_idle(BusySeconds(sink, "idle")),
      generated_tokens_total(
          sink.AddCounter("generated_tokens_total", "Tokens generated and handed to their owner", {})),
      prompt_tokens_computed_total(sink.AddCounter(
          "prompt_tokens_total", "Prompt tokens by where their state came from", {{"source", "computed"}})),
      prompt_tokens_cached_total(sink.AddCounter("prompt_tokens_total",
                                                 "Prompt tokens by where their state came from",
                                                 {{"source", "prefix_cached"}})),
      prefix_cache_lookup_tokens_total(sink.AddCounter("prefix_cache_lookup_tokens_total",
                                                       "Prompt tokens looked up in the prefix cache", {})),
      prefix_cache_hit_tokens_total(
          sink.AddCounter("prefix_cache_hit_tokens_total", "Prompt tokens found there", {})),
      preemptions_total(sink.AddCounter("preemptions_total", "Requests that lost their memory to others",
                                        {{"kind", "recompute"}})),
      tokens_discarded_abort_total(sink.AddCounter(
          "tokens_discarded_total", "Rows computed whose result nobody got, by why", {{"reason", "abort"}})),
      tokens_discarded_preempt_total(sink.AddCounter("tokens_discarded_total",
                                                     "Rows computed whose result nobody got, by why",
                                                     {{"reason", "preempt_recompute"}})) {}

}  // namespace comoe::batching
