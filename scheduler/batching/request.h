// A request as the scheduler sees it, and what its owner hears back. Values and ids; no text, no gRPC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/base/ids.h"

namespace comoe::batching {

struct StopConditions {
  std::int64_t max_tokens = 1;                // at least 1
  std::vector<base::TokenId> stop_token_ids;  // besides the model's EOS tokens
  bool ignore_eos = false;
};

struct Request {
  std::string id;                     // unique among those in flight
  std::vector<base::TokenId> prompt;  // at least one
  api::SamplingParams sampling;
  StopConditions stop;
  absl::Time received = absl::InfinitePast();    // when the RPC arrived: time to first token counts from here
  absl::Time deadline = absl::InfiniteFuture();  // the RPC's
  bool counted = true;  // false: the service's own warm-up, which is no traffic and in no count or histogram
};

enum class FinishReason {
  kStopEos,        // the model's end of sequence
  kStopToken,      // one of stop_token_ids
  kMaxTokens,      // the request's own limit
  kContextLength,  // the model's, or all that KV memory holds
  kAborted,        // cancelled by its owner
  kDeadline,       // the RPC's deadline passed
  kDraining,       // the service is shutting down
  kError           // see status
};
absl::string_view FinishReasonName(FinishReason reason);  // "stop_eos", ... : also the metric label

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  // the EOS or stop token included
  std::int64_t cached_prompt_tokens = 0;
};

struct RequestTiming {
  absl::Duration queue;
  absl::Duration prefill;              // from its first step to its first token
  absl::Duration decode;               // from its first token to its last
  absl::Duration time_to_first_token;  // from Request::received
};

struct GeneratedToken {
  base::TokenId id = 0;
  float logprob = 0.0F;
};

struct RequestOutcome {
  FinishReason reason = FinishReason::kError;
  base::TokenId matched_token = -1;  // kStopEos, kStopToken
  Usage usage;
  RequestTiming timing;
  absl::Status status;  // OK unless kError, kDeadline, kDraining
};

// Hears about one request. Called on the scheduler's thread, never under its lock, in this order: OnStarted
// once, OnTokens any number of times, OnFinished exactly once (without OnStarted if it never ran), nothing
// after it. Implementations hand over to other threads: they neither block nor call gRPC.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  virtual void OnStarted() = 0;
  virtual void OnTokens(absl::Span<const GeneratedToken> tokens) = 0;
  virtual void OnFinished(const RequestOutcome& outcome) = 0;
};

}  // namespace comoe::batching
