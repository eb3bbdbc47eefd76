// Whether a sequence ends with the token it has just been given. Token ids only: stop strings belong to the
// server, which sees text, and which cancels.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "scheduler/batching/request.h"

namespace comoe::batching {

// How many tokens a request may get, and what it means when they are used up.
struct TokenLimit {
  std::int64_t max_new_tokens = 0;
  FinishReason reason = FinishReason::kMaxTokens;  // or kContextLength
};

struct StopDecision {
  FinishReason reason = FinishReason::kMaxTokens;
  base::TokenId matched_token = -1;
};

// The lesser of what the request asks for and what is left of `max_positions` after its prompt; at least 1 if
// prompt_tokens < max_positions.
TokenLimit LimitTokens(std::int64_t max_tokens, std::int64_t prompt_tokens, std::int64_t max_positions);

// `token` is the sequence's `num_generated`-th. A token that ends it does so for its own sake rather than for
// the limit it also reaches. An EOS token that ignore_eos passes over still counts if it is among
// stop_token_ids.
// No token up to min_tokens ends it for its own sake.
std::optional<StopDecision> DecideStop(const StopConditions& conditions,
                                       absl::Span<const base::TokenId> eos_token_ids, const TokenLimit& limit,
                                       base::TokenId token, std::int64_t num_generated);

// What would end the sequence for its own sake: tokens of the vocabulary, to be masked up to min_tokens.
std::vector<base::TokenId> StopTokens(const StopConditions& conditions,
                                      absl::Span<const base::TokenId> eos_token_ids, std::int32_t vocab_size);

}  // namespace comoe::batching
