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
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::batching {

struct StopConditions {
  std::int64_t max_tokens = 1;                // at least 1
  std::vector<base::TokenId> stop_token_ids;  // besides the model's EOS tokens
  bool ignore_eos = false;
  // Until the completion has that many tokens, what would end it (EOS unless ignore_eos, stop tokens) is
  // masked, and ends nothing.
  std::int64_t min_tokens = 0;  // at most max_tokens
};

struct Request {
  std::string id;                     // unique among those in flight
  std::vector<base::TokenId> prompt;  // at least one
  api::SamplingParams sampling;
  StopConditions stop;
  std::int32_t priority = 0;  // higher runs first
  std::string cache_salt;     // prefixes are shared only among requests of the same salt
  // GeneratedToken::logprobs, with that many alternatives, at most api::kMaxTopLogprobs; -1: none (faster).
  std::int32_t top_logprobs = -1;
  std::int32_t prompt_logprobs = -1;  // the same for the prompt: at least 0 asks for OnPromptScores
  bool prefill_only = false;  // ends (kMaxTokens) once the prompt is computed and scored, with no token
  // More than 0, from `received` on: then the request ends with what there is (kTimeLimit).
  absl::Duration time_limit = absl::InfiniteDuration();
  // When the RPC arrived: time limit and time to first token count from here. InfinitePast: from Submit.
  absl::Time received = absl::InfinitePast();
  absl::Time deadline = absl::InfiniteFuture();  // the RPC's
  bool counted = true;  // false: the service's own warm-up, which is no traffic and in no count or histogram
};

enum class FinishReason {
  kStopEos,        // the model's end of sequence
  kStopString,     // its owner matched one in the text: Scheduler::Cancel with kStopMatched
  kStopToken,      // one of stop_token_ids
  kMaxTokens,      // the request's own limit
  kContextLength,  // the model's, or all that KV memory holds
  kTimeLimit,      // the request's own
  kAborted,        // cancelled by its owner
  kDeadline,       // the RPC's deadline passed
  kDraining,       // the service is shutting down
  kError           // see status
};
absl::string_view FinishReasonName(FinishReason reason);  // "stop_eos", ... : also the metric label

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;     // the EOS or stop token included
  std::int64_t cached_prompt_tokens = 0;  // whose state was in memory when the request first started
};

struct RequestTiming {
  absl::Duration queue;
  absl::Duration prefill;  // from its first step to its first token, or to the end of prefill_only
  absl::Duration decode;   // from its first token to its last
  absl::Duration time_to_first_token;  // from Request::received
  std::int64_t preemptions = 0;        // how often it lost its memory to others and was computed again
};

struct GeneratedToken {
  base::TokenId id = 0;
  api::LogprobRow logprobs;  // if Request::top_logprobs asked for it
};

struct RequestOutcome {
  FinishReason reason = FinishReason::kError;
  base::TokenId matched_token = -1;  // kStopEos, kStopToken
  Usage usage;
  RequestTiming timing;
  absl::Status status;  // OK unless kError, kDeadline, kDraining
};

// Hears about one request. Called on the scheduler's thread, never under its lock, in this order: OnStarted
// once, OnPromptScores (only if asked for) any number of times, OnTokens any number of times, OnFinished
// exactly once (without OnStarted if it never ran), nothing after it. Implementations hand over to other
// threads: they neither block nor call gRPC.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  virtual void OnStarted(std::int64_t cached_prompt_tokens) = 0;
  // Of the prompt's second token and the following ones, in order, each once; the first has none.
  virtual void OnPromptScores(absl::Span<const api::LogprobRow> scores) { static_cast<void>(scores); }
  virtual void OnTokens(absl::Span<const GeneratedToken> tokens) = 0;
  virtual void OnFinished(const RequestOutcome& outcome) = 0;
};

}  // namespace comoe::batching
