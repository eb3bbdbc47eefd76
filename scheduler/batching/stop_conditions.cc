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
  if (!conditions.ignore_eos && Contains(eos_token_ids, token)) {
    return StopDecision{FinishReason::kStopEos, token};
  }
  if (Contains(conditions.stop_token_ids, token)) {
    return StopDecision{FinishReason::kStopToken, token};
  }
  if (num_generated >= limit.max_new_tokens) {
    return StopDecision{limit.reason, -1};
  }
  return std::nullopt;
}

}  // namespace comoe::batching
