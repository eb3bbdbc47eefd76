#include "scheduler/batching/request.h"

namespace comoe::batching {

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopEos:
      return "stop_eos";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kStopToken:
      return "stop_token";
    case FinishReason::kMaxTokens:
      return "max_tokens";
    case FinishReason::kContextLength:
      return "context_length";
    case FinishReason::kTimeLimit:
      return "time_limit";
    case FinishReason::kAborted:
      return "aborted";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kDraining:
      return "draining";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

}  // namespace comoe::batching
