#include "cli/offline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

// Logits of this many rows are held at once.
constexpr std::int64_t kLogitsChunk = 64;

}  // namespace

OfflineSequence::OfflineSequence(api::Engine& engine) : engine_(engine) {
  for (const std::int32_t num_blocks : engine.capacity().num_blocks) {
    api::GroupState state;
    for (std::int32_t block = 0; block < num_blocks; ++block) {
      state.blocks.push_back({block});
    }
    groups_.push_back(std::move(state));
  }
}

absl::StatusOr<api::SpanResult> OfflineSequence::Run(absl::Span<const base::TokenId> tokens,
                                                     api::LogitsMode mode, bool return_logits,
                                                     const api::SamplingParams* sampling) {
  const std::int64_t end = position() + static_cast<std::int64_t>(tokens.size());
  if (end > engine_.capacity().max_positions) {
    return absl::OutOfRangeError(
        absl::StrCat("position ", end, " is beyond the ", engine_.capacity().max_positions, " that fit"));
  }
  api::StepPlan plan;
  plan.step = {next_step_++};
  api::PlanSpan& span = plan.spans.emplace_back();
  span.start_position = position();
  span.tokens.assign(tokens.begin(), tokens.end());
  span.groups = groups_;
  span.logits = mode;
  span.return_logits = return_logits;
  if (sampling != nullptr) {
    span.sample = *sampling;
    num_prompt_ = num_prompt_.value_or(end);
    if (sampling->penalises()) {
      span.context.tokens = tokens_;
      span.context.tokens.insert(span.context.tokens.end(), tokens.begin(), tokens.end());
      span.context.num_prompt = *num_prompt_;
    }
  }
  COMOE_ASSIGN_OR_RETURN(api::StepResult result, engine_.Step(plan));
  COMOE_RETURN_IF_ERROR(result.spans.front().status);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return std::move(result.spans.front());
}

absl::Status OfflineSequence::Append(absl::Span<const base::TokenId> tokens) {
  const auto chunk = static_cast<std::size_t>(engine_.capacity().max_rows);
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    COMOE_RETURN_IF_ERROR(Run(tokens.subspan(begin, chunk), api::LogitsMode::kNone, false, nullptr).status());
  }
  return absl::OkStatus();
}

absl::Status OfflineSequence::AppendWithLogits(absl::Span<const base::TokenId> tokens, LogitsSink sink) {
  const auto chunk = static_cast<std::size_t>(std::min(engine_.capacity().max_rows, kLogitsChunk));
  const auto vocab = static_cast<std::size_t>(engine_.model_info().vocab_size);
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const absl::Span<const base::TokenId> part = tokens.subspan(begin, chunk);
    const std::int64_t first = position();
    COMOE_ASSIGN_OR_RETURN(const api::SpanResult result, Run(part, api::LogitsMode::kAll, true, nullptr));
    for (std::size_t i = 0; i < part.size(); ++i) {
      sink(first + static_cast<std::int64_t>(i),
           absl::MakeConstSpan(result.logits).subspan(i * vocab, vocab));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<api::SpanResult> OfflineSequence::AppendAndSample(absl::Span<const base::TokenId> tokens,
                                                                 const api::SamplingParams& sampling) {
  if (tokens.empty()) {
    return absl::InvalidArgumentError("there is no token to continue from");
  }
  const auto chunk = static_cast<std::size_t>(engine_.capacity().max_rows);
  const std::size_t last = (tokens.size() - 1) / chunk * chunk;
  COMOE_RETURN_IF_ERROR(Append(tokens.first(last)));
  return Run(tokens.subspan(last), api::LogitsMode::kLast, false, &sampling);
}

double NegativeLogLikelihood(absl::Span<const float> logits, base::TokenId token) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - highest);
  }
  return highest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(token)]);
}

}  // namespace comoe::cli
