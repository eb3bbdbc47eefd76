// From a request message to what the scheduler takes. Pure functions: every field is checked, or refused by
// name, before anything is queued. Ranges are written so that NaN fails them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comoe/v1/inference.pb.h"
#include "engine/api/model_info.h"
#include "engine/base/ids.h"
#include "scheduler/batching/request.h"
#include "server/config.h"

namespace comoe::server {

// What the served model and this server allow.
struct RequestBounds {
  const api::ModelInfo& model;
  std::int64_t max_positions = 0;  // of a sequence, prompt and completion together
  bool has_tokenizer = false;
  const Limits& limits;
};

// How an answer is made of tokens.
struct OutputSpec {
  bool return_token_ids = true;
  bool return_text = true;
  bool return_token_pieces = false;
  bool skip_special_tokens = true;
  bool include_stop_in_output = false;
  bool echo_prompt = false;
  bool return_logprobs = false;
  bool include_usage_every_chunk = true;  // streams
  bool include_timing = true;             // streams only if asked for
  // Streams gather tokens until there are that many, but no longer than the delay after the first of them.
  std::int64_t min_chunk_tokens = 1;
  absl::Duration max_chunk_delay = absl::InfiniteDuration();
};

struct GenerationSpec {
  batching::Request
      request;  // of choice 0; without `received` and `deadline`; with its prompt only after SetPrompt
  bool prompt_is_text = false;  // the caller tokenises GenerateRequest.text
  bool add_special_tokens = true;
  std::int64_t truncate_prompt_tokens = 0;  // keep that many of the last; 0: all
  std::int64_t num_choices = 1;
  std::vector<std::string> stop_strings;
  OutputSpec output;
};

// Checks all fields that need no tokenizer. A request without an id gets one, one without a seed a drawn one.
// INVALID_ARGUMENT: the message starts with the field's path ("sampling.top_p is ..."). NOT_FOUND: another
// model. UNIMPLEMENTED names the feature and what there is. FAILED_PRECONDITION: text, and the model has no
// tokenizer.
absl::StatusOr<GenerationSpec> ParseGenerateRequest(const v1::GenerateRequest& request,
                                                    const RequestBounds& bounds);
// The same for a stream; paths of fields begin with "request." or "stream.".
absl::StatusOr<GenerationSpec> ParseGenerateStreamRequest(const v1::GenerateStreamRequest& request,
                                                          const RequestBounds& bounds);

// Gives the spec its prompt, cut as it says, and checks the length. INVALID_ARGUMENT: empty or too long.
absl::Status SetPrompt(std::vector<base::TokenId> prompt, const RequestBounds& bounds, GenerationSpec* spec);

// What this server does, as GetModel lists it.
std::vector<std::string> Features(bool has_tokenizer);

}  // namespace comoe::server
