#include "scheduler/batching/intake.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/sampling_params.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "scheduler/batching/stop_conditions.h"

namespace comoe::batching {
namespace {

// A prompt to be computed only needs no place for a token of the completion.
std::int64_t PositionsNeeded(const Request& request) {
  return static_cast<std::int64_t>(request.prompt.size()) + (request.prefill_only ? 0 : 1);
}

absl::Status CheckPrompt(const Request& request, const IntakeLimits& limits) {
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  if (num_prompt == 0) {
    return absl::InvalidArgumentError("the prompt is empty: it has at least one token");
  }
  if (const std::int64_t positions = PositionsNeeded(request); positions > limits.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has ", num_prompt, " tokens: ", request.prefill_only ? "" : "with one to generate, ",
        positions, " positions, and a sequence has at most ", limits.max_positions));
  }
  for (const base::TokenId token : request.prompt) {
    if (token < 0 || token >= limits.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " of the prompt is not in the vocabulary of ", limits.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const Request& request, const IntakeLimits& limits) {
  COMOE_RETURN_IF_ERROR(CheckPrompt(request, limits));
  const StopConditions& stop = request.stop;
  if (stop.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_tokens is ", stop.max_tokens, ": it is at least 1"));
  }
  if (stop.min_tokens < 0 || stop.min_tokens > stop.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "min_tokens is ", stop.min_tokens, ": it lies in [0, max_tokens], which is ", stop.max_tokens));
  }
  for (const base::TokenId token : stop.stop_token_ids) {
    if (token < 0 || token >= limits.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop token ", token, " is not in the vocabulary of ", limits.vocab_size));
    }
  }
  for (const std::int32_t count : {request.top_logprobs, request.prompt_logprobs}) {
    if (count < -1 || count > api::kMaxTopLogprobs) {
      return absl::InvalidArgumentError(absl::StrCat(
          count, " alternatives to a token are wanted: the number lies in [0, ", api::kMaxTopLogprobs, "]"));
    }
  }
  if (request.time_limit <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("time_limit is ", absl::FormatDuration(request.time_limit), ": it is more than 0"));
  }
  return api::ValidateSamplingParams(request.sampling, limits.vocab_size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(Submission submission, const IntakeLimits& limits,
                                                       absl::Time now) {
  Request& request = submission.request;
  COMOE_CHECK(submission.observer != nullptr, "a request has an observer");
  COMOE_RETURN_IF_ERROR(CheckRequest(request, limits));
  auto sequence = std::make_unique<Sequence>();
  sequence->num_prompt = static_cast<std::int64_t>(request.prompt.size());
  sequence->limit = LimitTokens(request.stop.max_tokens, sequence->num_prompt, limits.max_positions);
  sequence->tokens = std::move(request.prompt);
  sequence->request = std::move(request);
  sequence->observer = std::move(submission.observer);
  sequence->submitted = now;
  sequence->time_limit = sequence->received() + sequence->request.time_limit;
  if (sequence->request.stop.min_tokens > 0) {
    sequence->masked = StopTokens(sequence->request.stop, limits.eos_token_ids, limits.vocab_size);
  }
  return sequence;
}

}  // namespace comoe::batching
