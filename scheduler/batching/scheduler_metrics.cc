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

}  // namespace

SchedulerMetrics::SchedulerMetrics(base::MetricsSink& sink)
    : requests_running(sink.AddGauge("requests_running", "Requests whose rows are being computed", {})),
      requests_waiting(sink.AddGauge("requests_waiting", "Requests accepted and not yet started", {})),
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
      generated_tokens_total(
          sink.AddCounter("generated_tokens_total", "Tokens generated and handed to their owner", {})),
      prompt_tokens_computed_total(sink.AddCounter(
          "prompt_tokens_total", "Prompt tokens by where their state came from", {{"source", "computed"}})),
      tokens_discarded_abort_total(sink.AddCounter(
          "tokens_discarded_total", "Rows computed whose result nobody got, by why", {{"reason", "abort"}})) {
}

}  // namespace comoe::batching
