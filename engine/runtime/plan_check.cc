#include "engine/runtime/plan_check.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"

namespace comoe::runtime {
namespace {

// Blocks that the rows of a span read or write: from the window's start, or the first, to the last position.
absl::Status CheckBlocks(const api::PlanSpan& span, const api::CacheGroup& group,
                         const api::GroupState& state, std::int32_t num_blocks) {
  const std::int64_t end = span.start_position + static_cast<std::int64_t>(span.tokens.size());
  const std::int64_t begin =
      group.window_tokens > 0 ? std::max<std::int64_t>(0, span.start_position - group.window_tokens + 1) : 0;
  const std::int64_t last = (end - 1) / group.block_tokens;
  if (static_cast<std::int64_t>(state.blocks.size()) <= last) {
    return absl::InvalidArgumentError(
        absl::StrCat(state.blocks.size(), " blocks do not hold positions up to ", end - 1));
  }
  for (std::int64_t i = begin / group.block_tokens; i <= last; ++i) {
    const std::int32_t block = state.blocks[static_cast<std::size_t>(i)].value;
    if (block < 0 || block >= num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("block ", block, " is not in [0, ", num_blocks, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(absl::Span<const base::TokenId> tokens, std::int32_t vocab_size) {
  for (const base::TokenId token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token ", token, " is not in [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTopLogprobs(std::int32_t count, std::int32_t least) {
  if (count < least || count > api::kMaxTopLogprobs) {
    return absl::InvalidArgumentError(absl::StrCat(count, " alternatives are wanted: the number lies in [",
                                                   least, ", ", api::kMaxTopLogprobs, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckScores(const api::PlanSpan& span, std::int32_t vocab_size) {
  if (span.score.empty()) {
    return absl::OkStatus();
  }
  if (span.logits != api::LogitsMode::kAll) {
    return absl::InvalidArgumentError("scoring tokens needs LogitsMode kAll");
  }
  if (span.score.size() > span.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(span.score.size(), " tokens to score after ", span.tokens.size(), " rows"));
  }
  COMOE_RETURN_IF_ERROR(base::Annotate(CheckTokens(span.score, vocab_size), "to score"));
  return base::Annotate(CheckTopLogprobs(span.score_top_logprobs, 0), "score_top_logprobs");
}

absl::Status CheckDraw(const api::PlanSpan& span, std::int32_t vocab_size) {
  const api::SampleContext& context = span.context;
  COMOE_RETURN_IF_ERROR(api::ValidateSamplingParams(*span.sample, vocab_size));
  COMOE_RETURN_IF_ERROR(base::Annotate(CheckTopLogprobs(span.top_logprobs, -1), "top_logprobs"));
  COMOE_RETURN_IF_ERROR(base::Annotate(CheckTokens(context.masked, vocab_size), "masked"));
  COMOE_RETURN_IF_ERROR(base::Annotate(CheckTokens(context.tokens, vocab_size), "context"));
  const std::int64_t end = span.start_position + static_cast<std::int64_t>(span.tokens.size());
  const auto num_tokens = static_cast<std::int64_t>(context.tokens.size());
  if (span.sample->penalises() && num_tokens != end) {
    return absl::InvalidArgumentError(
        absl::StrCat("the draw after ", end, " tokens penalises, and its context has ", num_tokens));
  }
  if (context.num_prompt < 0 || context.num_prompt > num_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of ", context.num_prompt, " tokens in a context of ", num_tokens));
  }
  return absl::OkStatus();
}

absl::Status CheckSpan(const api::PlanSpan& span, const api::ModelInfo& info,
                       const api::EngineCapacity& capacity) {
  if (span.tokens.empty()) {
    return absl::InvalidArgumentError("no tokens");
  }
  const auto rows = static_cast<std::int64_t>(span.tokens.size());
  if (span.start_position < 0 || span.start_position > capacity.max_positions - rows) {
    return absl::InvalidArgumentError(absl::StrCat(rows, " positions from ", span.start_position,
                                                   " on go beyond the ", capacity.max_positions,
                                                   " that fit"));
  }
  COMOE_RETURN_IF_ERROR(CheckTokens(span.tokens, info.vocab_size));
  if (span.groups.size() != info.cache_groups.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "state of ", span.groups.size(), " cache groups, the model has ", info.cache_groups.size()));
  }
  for (std::size_t g = 0; g < span.groups.size(); ++g) {
    COMOE_RETURN_IF_ERROR(
        base::Annotate(CheckBlocks(span, info.cache_groups[g], span.groups[g], capacity.num_blocks[g]),
                       absl::StrCat("cache group ", g)));
  }
  if (span.logits == api::LogitsMode::kNone && (span.sample.has_value() || span.return_logits)) {
    return absl::InvalidArgumentError("sampling or returning logits needs LogitsMode kLast or kAll");
  }
  COMOE_RETURN_IF_ERROR(CheckScores(span, info.vocab_size));
  return span.sample.has_value() ? CheckDraw(span, info.vocab_size) : absl::OkStatus();
}

}  // namespace

absl::Status CheckPlan(const api::StepPlan& plan, const api::ModelInfo& info,
                       const api::EngineCapacity& capacity) {
  if (plan.spans.empty()) {
    return absl::InvalidArgumentError("the plan has no spans");
  }
  if (static_cast<std::int64_t>(plan.spans.size()) > capacity.max_sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", plan.spans.size(), " sequences, ", capacity.max_sequences, " fit"));
  }
  for (std::size_t i = 0; i < plan.spans.size(); ++i) {
    COMOE_RETURN_IF_ERROR(base::Annotate(CheckSpan(plan.spans[i], info, capacity), absl::StrCat("span ", i)));
  }
  if (plan.num_rows() > capacity.max_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("the plan has ", plan.num_rows(), " rows, ", capacity.max_rows, " fit"));
  }
  return absl::OkStatus();
}

}  // namespace comoe::runtime
