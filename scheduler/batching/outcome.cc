#include "scheduler/batching/outcome.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace comoe::batching {

absl::Duration Elapsed(absl::Time from, absl::Time to) { return std::max(to - from, absl::ZeroDuration()); }

absl::Status CheckResult(const api::StepPlan& plan, const api::StepResult& result, std::int32_t vocab_size) {
  if (result.spans.size() != plan.spans.size()) {
    return absl::InternalError(
        absl::StrCat("the engine answered ", result.spans.size(), " spans of ", plan.spans.size()));
  }
  for (std::size_t i = 0; i < plan.spans.size(); ++i) {
    const api::SpanResult& span = result.spans[i];
    if (span.sequence == plan.spans[i].sequence && !span.status.ok()) {
      continue;
    }
    if (span.sequence != plan.spans[i].sequence ||
        span.token.has_value() != plan.spans[i].sample.has_value() ||
        span.scores.size() != plan.spans[i].score.size()) {
      return absl::InternalError(
          absl::StrCat("the engine's answer for span ", i, " is not to what was asked"));
    }
    if (span.token.has_value() && (*span.token < 0 || *span.token >= vocab_size)) {
      return absl::InternalError(absl::StrCat("the engine sampled token ", *span.token, " of ", vocab_size));
    }
  }
  return absl::OkStatus();
}

RequestOutcome MakeOutcome(const Sequence& sequence, FinishReason reason, const absl::Status& status,
                           base::TokenId matched_token, absl::Time now) {
  RequestOutcome outcome;
  outcome.reason = reason;
  outcome.status = status;
  outcome.matched_token = matched_token;
  outcome.usage.prompt_tokens = sequence.num_prompt;
  outcome.usage.completion_tokens = sequence.num_generated();
  outcome.usage.cached_prompt_tokens = sequence.num_cached_at_start;
  outcome.timing.preemptions = sequence.preemptions;
  outcome.timing.queue = Elapsed(sequence.submitted, sequence.has_run() ? sequence.started : now);
  if (sequence.num_generated() > 0) {
    outcome.timing.prefill = Elapsed(sequence.started, sequence.first_token);
    outcome.timing.decode = Elapsed(sequence.first_token, sequence.last_token);
    outcome.timing.time_to_first_token = Elapsed(sequence.received(), sequence.first_token);
  } else if (reason == FinishReason::kMaxTokens) {  // prefill only
    outcome.timing.prefill = Elapsed(sequence.started, now);
  }
  return outcome;
}

void RecordOutcome(const Sequence& sequence, const RequestOutcome& outcome, SchedulerMetrics& metrics) {
  metrics.request_queue_seconds.Observe(absl::ToDoubleSeconds(outcome.timing.queue));
  if (sequence.num_generated() > 0) {
    metrics.prefill_seconds.Observe(absl::ToDoubleSeconds(outcome.timing.prefill));
    metrics.decode_seconds.Observe(absl::ToDoubleSeconds(outcome.timing.decode));
  }
  if (outcome.reason == FinishReason::kAborted || outcome.reason == FinishReason::kDeadline ||
      outcome.reason == FinishReason::kDraining) {
    metrics.tokens_discarded_abort_total.Increment(static_cast<double>(sequence.num_undelivered));
  }
  metrics.tokens_discarded_preempt_total.Increment(static_cast<double>(sequence.num_recomputed));
}

}  // namespace comoe::batching
