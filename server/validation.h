// From a request message to what the scheduler takes. Pure functions: every field is checked, or refused by
// name, before anything is queued. Ranges are written so that NaN fails them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  bool include_usage_every_chunk = true;  // streams
  bool include_timing = true;             // streams only if asked for
};

struct GenerationSpec {
  batching::Request
      request;  // without `received` and `deadline`; its prompt and max_tokens only after SetPrompt
  bool prompt_is_text = false;  // the caller tokenises GenerateRequest.text
  bool add_special_tokens = true;
  bool max_tokens_given = false;
  OutputSpec output;
};

// Checks all fields that need no tokenizer. A request without an id gets one, one without a seed a drawn one.
// INVALID_ARGUMENT: the message starts with the field's path ("sampling.top_p is ..."). NOT_FOUND: another
// model. UNIMPLEMENTED names the feature and what there is. FAILED_PRECONDITION: text, and the model has no
// tokenizer.
absl::StatusOr<GenerationSpec> ParseGenerateRequest(const v1::GenerateRequest& request,
                                                    const RequestBounds& bounds);
// The same for a stream.
absl::StatusOr<GenerationSpec> ParseGenerateStreamRequest(const v1::GenerateStreamRequest& request,
                                                          const RequestBounds& bounds);

// Gives the spec its prompt, checks its length and fills in a default max_tokens. INVALID_ARGUMENT: empty or
// too long.
absl::Status SetPrompt(std::vector<base::TokenId> prompt, const RequestBounds& bounds, GenerationSpec* spec);

// "" and the served model's name are fine; NOT_FOUND names what is served.
absl::Status CheckModel(absl::string_view name, const api::ModelInfo& model);
absl::Status CheckTextBytes(absl::string_view field, absl::string_view text, const Limits& limits);
// Token ids of a message, each checked against the vocabulary.
absl::StatusOr<std::vector<base::TokenId>> ToTokenIds(
    absl::string_view field, const google::protobuf::RepeatedField<std::uint32_t>& ids,
    std::int32_t vocab_size);
// 1 to 128 bytes of [A-Za-z0-9._:-].
absl::Status CheckRequestId(absl::string_view field, absl::string_view id);

// What this server does, as GetModel lists it.
std::vector<std::string> Features(bool has_tokenizer);

}  // namespace comoe::server
