// Metrics of RPCs. Every RPC that reaches a handler ends in RecordTerminal, whatever came of it, so that the
// sum of requests_total is the number of RPCs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/model_info.h"
#include "engine/base/metrics_sink.h"
#include "scheduler/batching/request.h"
#include "server/serving_state.h"
#include "server/status_conversion.h"

namespace comoe::server {

enum class Method {
  kGenerate,
  kGenerateStream,
  kTokenize,
  kDetokenize,
  kAbort,
  kGetModel,
  kListModels,
  kGetServerInfo,
  kGetLoads,
  kDrain,
  kFlushCache,
  kSetLogLevel,
  kStartProfile,
  kStopProfile
};
inline constexpr std::size_t kNumMethods = 14;
absl::string_view MethodName(Method method);  // as the service calls it: "Generate"

// Why a generation never reached the engine.
enum class Rejection {
  kNone,
  kQueueFull,
  kTooLong,
  kInvalid,
  kLoading,
  kDraining,
  kDeadline,
  kUnknownModel,
  kDuplicateId,
  kNotBuilt,
  kOther
};
inline constexpr std::size_t kNumRejections = 11;
// From the status that refused it; `phase` tells loading from draining.
Rejection RejectionOf(const absl::Status& status, Phase phase);

// Why a running generation ended early.
enum class EarlyEnd { kNone, kClientCancel, kDeadline, kSlowConsumer, kAbort, kDrain, kEngineError };
inline constexpr std::size_t kNumEarlyEnds = 7;

// How an RPC ended.
struct Terminal {
  Method method = Method::kGenerate;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::optional<batching::FinishReason> finish_reason;  // generations that were accepted
  Rejection rejection = Rejection::kNone;
  EarlyEnd early_end = EarlyEnd::kNone;
  absl::Duration elapsed;           // from arrival
  absl::Duration per_output_token;  // mean of all but the first; zero when there were fewer than two
  // Of generations that were accepted.
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t max_tokens = 0;
};

// Thread-safe. `sink` outlives it.
class RequestMetrics {
 public:
  explicit RequestMetrics(base::MetricsSink& sink);

  // At arrival. Each is followed by one RecordTerminal.
  void RecordStart(Method method);
  void RecordTerminal(const Terminal& terminal);
  // From the arrival of the RPC, tokenising and queue included.
  void ObserveFirstToken(absl::Duration since_arrival);
  // Between one emission of the engine and the next of the same request.
  void ObserveNextToken(absl::Duration since_last);
  // Tokens that were generated behind a stop string, before the scheduler heard of it.
  void AddTokensAfterStop(std::int64_t tokens);
  // Tokens that wait for the readers of all streams.
  void SetStreamBacklog(std::int64_t tokens);

 private:
  static constexpr std::size_t kNumFinishLabels =
      static_cast<std::size_t>(batching::FinishReason::kError) + 2;  // the reasons, and "none"
  base::Counter& RequestsCounter(const Terminal& terminal);
  base::Counter& GrpcHandled(Method method, std::size_t code);

  base::MetricsSink& sink_;
  // Filled as combinations occur: most never do.
  std::array<std::atomic<base::Counter*>, kNumMethods* kNumStatusCodes* kNumFinishLabels> requests_ = {};
  std::array<std::atomic<base::Counter*>, kNumMethods* kNumStatusCodes> grpc_handled_ = {};
  std::array<base::Counter*, kNumRejections> rejections_ = {};  // [0] is null
  std::array<base::Counter*, kNumEarlyEnds> early_ends_ = {};   // [0] is null
  base::Histogram& first_token_;
  base::Histogram& next_token_;
  base::Histogram& per_output_token_;
  base::Histogram& end_to_end_;
  base::Histogram& prompt_tokens_;
  base::Histogram& completion_tokens_;
  base::Histogram& max_tokens_;
  // Under the names that the gRPC middlewares of other languages use, so that ready-made boards work.
  std::array<base::Counter*, kNumMethods> grpc_started_ = {};
  std::array<base::Histogram*, kNumMethods> grpc_seconds_ = {};
  base::Counter& tokens_after_stop_;
  base::Gauge& stream_backlog_;
};

// build_info, at start; model_info and model_load_seconds, once it is loaded.
void PublishBuildInfo(base::MetricsSink& sink);
void PublishModelInfo(const Backend& backend, base::MetricsSink& sink);

// Of CoMoE, as "0.1.0".
absl::string_view Version();

}  // namespace comoe::server
