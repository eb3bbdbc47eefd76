#include "scheduler/batching/stop_conditions.h"

#include <algorithm>

namespace comoe::batching {
namespace {

bool Contains(absl::Span<const base::TokenId> ids, base::TokenId token) {
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

}  // namespace

TokenLimit LimitTokens(std::int64_t max_tokens, std::int64_t prompt_tokens, std::int64_t max_positions) {
  const std::int64_t room = max_positions - prompt_tokens;
  return max_tokens <= room ? TokenLimit{max_tokens, FinishReason::kMaxTokens}
                            : TokenLimit{room, FinishReason::kContextLength};
}

std::optional<StopDecision> DecideStop(const StopConditions& conditions,
                                       absl::Span<const base::TokenId> eos_token_ids, const TokenLimit& limit,
                                       base::TokenId token, std::int64_t num_generated) {
  const bool may_stop = num_generated > conditions.min_tokens;
  if (may_stop && !conditions.ignore_eos && Contains(eos_token_ids, token)) {
    return StopDecision{FinishReason::kStopEos, token};
  }
  if (may_stop && Contains(conditions.stop_token_ids, token)) {
    return StopDecision{FinishReason::kStopToken, token};
  }
  if (num_generated >= limit.max_new_tokens) {
    return StopDecision{limit.reason, -1};
  }
  return std::nullopt;
}

std::vector<base::TokenId> StopTokens(const StopConditions& conditions,
                                      absl::Span<const base::TokenId> eos_token_ids,
                                      std::int32_t vocab_size) {
  std::vector<base::TokenId> result = conditions.stop_token_ids;
  if (!conditions.ignore_eos) {
    result.insert(result.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  result.erase(std::remove_if(result.begin(), result.end(),
                              [vocab_size](base::TokenId id) { return id < 0 || id >= vocab_size; }),
               result.end());
  return result;
}

}  // namespace comoe::batching
