#include "server/request_metrics.h"

#include <string>
#include <utility>
#include <vector>

#ifndef COMOE_VERSION
#error "the build defines COMOE_VERSION"
#endif

namespace comoe::server {
namespace {

constexpr std::array<absl::string_view, kNumMethods> kMethodNames = {
    "Generate",   "GenerateStream", "Tokenize",      "Detokenize", "Abort",
    "GetModel",   "ListModels",     "GetServerInfo", "GetLoads",   "Drain",
    "FlushCache", "SetLogLevel",    "StartProfile",  "StopProfile"};
constexpr std::size_t kFirstModelMethod = static_cast<std::size_t>(Method::kGetModel);
constexpr std::size_t kFirstAdminMethod = static_cast<std::size_t>(Method::kGetServerInfo);
constexpr std::array<absl::string_view, kNumRejections> kRejectionNames = {
    "",         "queue_full",    "too_long",     "invalid",   "loading", "draining",
    "deadline", "unknown_model", "duplicate_id", "not_built", "other"};
constexpr std::array<absl::string_view, kNumEarlyEnds> kEarlyEndNames = {
    "", "client_cancel", "deadline", "slow_consumer", "abort", "drain", "engine_error"};

// 1 ms to 160 s: a short prompt on an idle server, and a long one behind a full queue.
std::vector<double> FirstTokenBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160};
}
std::vector<double> NextTokenBuckets() {
  return {.0005, .001, .002, .004, .006, .008, .01, .015, .02, .03, .04,
          .06,   .08,  .1,   .15,  .2,   .3,   .5,  1,    2.5, 5,   10};
}
std::vector<double> EndToEndBuckets() {
  return {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640};
}

// 1, 2, 5, 10, ...: prompts and completions up to any context of today.
std::vector<double> TokenBuckets() {
  std::vector<double> buckets;
  for (double decade = 1; decade <= 100000; decade *= 10) {
    buckets.insert(buckets.end(), {decade, 2 * decade, 5 * decade});
  }
  return buckets;
}

base::Labels GrpcLabels(std::size_t method) {
  const absl::string_view service = method < kFirstModelMethod   ? "comoe.v1.InferenceService"
                                    : method < kFirstAdminMethod ? "comoe.v1.ModelService"
                                                                 : "comoe.v1.AdminService";
  const bool stream = method == static_cast<std::size_t>(Method::kGenerateStream);
  return {{"grpc_type", stream ? "server_stream" : "unary"},
          {"grpc_service", std::string(service)},
          {"grpc_method", std::string(kMethodNames[method])}};
}

std::size_t CodeIndex(absl::StatusCode code) {
  // absl's codes are an open set; those beyond gRPC's count as UNKNOWN.
  const auto index = static_cast<std::size_t>(code);
  return index < kNumStatusCodes ? index : static_cast<std::size_t>(absl::StatusCode::kUnknown);
}

}  // namespace

absl::string_view MethodName(Method method) { return kMethodNames[static_cast<std::size_t>(method)]; }

Rejection RejectionOf(const absl::Status& status, Phase phase) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return Rejection::kQueueFull;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return Rejection::kInvalid;
    case absl::StatusCode::kUnavailable:
      return phase == Phase::kLoading ? Rejection::kLoading : Rejection::kDraining;
    case absl::StatusCode::kDeadlineExceeded:
      return Rejection::kDeadline;
    case absl::StatusCode::kNotFound:
      return Rejection::kUnknownModel;
    case absl::StatusCode::kAlreadyExists:
      return Rejection::kDuplicateId;
    case absl::StatusCode::kUnimplemented:
      return Rejection::kNotBuilt;
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:  // the client left before it was queued
      return Rejection::kNone;
    default:
      return Rejection::kOther;
  }
}

RequestMetrics::RequestMetrics(base::MetricsSink& sink)
    : sink_(sink),
      first_token_(sink.AddHistogram("time_to_first_token_seconds",
                                     "From the arrival of a request to its first token.", {},
                                     FirstTokenBuckets())),
      next_token_(sink.AddHistogram("inter_token_latency_seconds",
                                    "Between one token of a request and the next, as the engine emits them.",
                                    {}, NextTokenBuckets())),
      per_output_token_(sink.AddHistogram("time_per_output_token_seconds",
                                          "Mean time between the tokens of one request.", {},
                                          NextTokenBuckets())),
      end_to_end_(sink.AddHistogram("e2e_seconds", "From the arrival of a generation request to its end.", {},
                                    EndToEndBuckets())),
      prompt_tokens_(sink.AddHistogram("request_prompt_tokens", "Tokens of the prompt of a generation.", {},
                                       TokenBuckets())),
      completion_tokens_(sink.AddHistogram("request_generated_tokens",
                                           "Tokens generated for a request, over all its completions.", {},
                                           TokenBuckets())),
      max_tokens_(sink.AddHistogram(
          "request_max_tokens", "Longest completion that a request allows, in tokens.", {}, TokenBuckets())),
      tokens_after_stop_(sink.AddCounter("tokens_discarded_total",
                                         "Rows computed whose result nobody got, by why",
                                         {{"reason", "after_stop"}})),
      stream_backlog_(
          sink.AddGauge("stream_backlog_tokens", "Tokens that wait for the readers of all streams.", {})) {
  for (std::size_t i = 0; i < kNumMethods; ++i) {
    grpc_started_[i] = &sink.AddCounter("grpc_server_started_total", "RPCs that arrived.", GrpcLabels(i));
    grpc_seconds_[i] =
        &sink.AddHistogram("grpc_server_handling_seconds", "From the arrival of an RPC to its end.",
                           GrpcLabels(i), EndToEndBuckets());
  }
  for (std::size_t i = 1; i < kNumRejections; ++i) {
    rejections_[i] =
        &sink.AddCounter("request_rejections_total", "Generation requests that never reached the engine.",
                         {{"reason", std::string(kRejectionNames[i])}});
  }
  for (std::size_t i = 1; i < kNumEarlyEnds; ++i) {
    early_ends_[i] =
        &sink.AddCounter("stream_aborts_total", "Generations that were accepted and ended early.",
                         {{"reason", std::string(kEarlyEndNames[i])}});
  }
}

base::Counter& RequestMetrics::RequestsCounter(const Terminal& terminal) {
  const auto method = static_cast<std::size_t>(terminal.method);
  const std::size_t code = CodeIndex(terminal.code);
  const std::size_t finish =
      terminal.finish_reason ? static_cast<std::size_t>(*terminal.finish_reason) + 1 : 0;
  std::atomic<base::Counter*>& entry =
      requests_[(method * kNumStatusCodes + code) * kNumFinishLabels + finish];
  base::Counter* counter = entry.load(std::memory_order_acquire);
  if (counter == nullptr) {
    // Two threads may both get here: the sink gives both the same counter.
    const absl::string_view reason =
        terminal.finish_reason ? batching::FinishReasonName(*terminal.finish_reason) : "none";
    counter = &sink_.AddCounter("requests_total", "RPCs that ended, by method, gRPC code and finish reason.",
                                {{"method", std::string(kMethodNames[method])},
                                 {"code", std::string(CodeName(static_cast<absl::StatusCode>(code)))},
                                 {"finish_reason", std::string(reason)}});
    entry.store(counter, std::memory_order_release);
  }
  return *counter;
}

base::Counter& RequestMetrics::GrpcHandled(Method method, std::size_t code) {
  const auto index = static_cast<std::size_t>(method);
  std::atomic<base::Counter*>& entry = grpc_handled_[index * kNumStatusCodes + code];
  base::Counter* counter = entry.load(std::memory_order_acquire);
  if (counter == nullptr) {
    base::Labels labels = GrpcLabels(index);
    labels.emplace_back("grpc_code", std::string(CodeName(static_cast<absl::StatusCode>(code))));
    counter = &sink_.AddCounter("grpc_server_handled_total", "RPCs that ended, by code.", labels);
    entry.store(counter, std::memory_order_release);
  }
  return *counter;
}

void RequestMetrics::RecordStart(Method method) {
  grpc_started_[static_cast<std::size_t>(method)]->Increment();
}

void RequestMetrics::RecordTerminal(const Terminal& terminal) {
  RequestsCounter(terminal).Increment();
  GrpcHandled(terminal.method, CodeIndex(terminal.code)).Increment();
  grpc_seconds_[static_cast<std::size_t>(terminal.method)]->Observe(absl::ToDoubleSeconds(terminal.elapsed));
  if (terminal.rejection != Rejection::kNone) {
    rejections_[static_cast<std::size_t>(terminal.rejection)]->Increment();
  }
  if (terminal.early_end != EarlyEnd::kNone) {
    early_ends_[static_cast<std::size_t>(terminal.early_end)]->Increment();
  }
  if (terminal.finish_reason) {
    end_to_end_.Observe(absl::ToDoubleSeconds(terminal.elapsed));
    prompt_tokens_.Observe(static_cast<double>(terminal.prompt_tokens));
    completion_tokens_.Observe(static_cast<double>(terminal.completion_tokens));
    max_tokens_.Observe(static_cast<double>(terminal.max_tokens));
    if (terminal.per_output_token > absl::ZeroDuration()) {
      per_output_token_.Observe(absl::ToDoubleSeconds(terminal.per_output_token));
    }
  }
}

void RequestMetrics::ObserveFirstToken(absl::Duration since_arrival) {
  first_token_.Observe(absl::ToDoubleSeconds(since_arrival));
}

void RequestMetrics::ObserveNextToken(absl::Duration since_last) {
  next_token_.Observe(absl::ToDoubleSeconds(since_last));
}

void RequestMetrics::AddTokensAfterStop(std::int64_t tokens) {
  tokens_after_stop_.Increment(static_cast<double>(tokens));
}

void RequestMetrics::SetStreamBacklog(std::int64_t tokens) {
  stream_backlog_.Set(static_cast<double>(tokens));
}

void PublishBuildInfo(base::MetricsSink& sink) {
  sink.AddGauge("build_info", "What was built; the value is 1.",
                {{"version", std::string(Version())}, {"compiler", __VERSION__}})
      .Set(1);
}

void PublishModelInfo(const Backend& backend, base::MetricsSink& sink) {
  sink.AddGauge("model_info", "What is served; the value is 1.",
                {{"model", backend.model.name},
                 {"architecture", backend.model.architecture},
                 {"weight_dtype", backend.model.weight_dtype}})
      .Set(1);
  sink.AddGauge("model_load_seconds", "How long the model took to load.", {}).Set(backend.load_seconds);
}

absl::string_view Version() { return COMOE_VERSION; }

}  // namespace comoe::server
