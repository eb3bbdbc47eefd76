// Which rows the next step computes.
//
// There are no phases: a sequence has tokens of which some are computed, and a step gives it rows until
// computed catches up (as in vLLM's V1 scheduler). In this order, while the budget lasts:
//   1. sequences with one row to go (decodes)
//   2. prompts that are nearly done or short, at most kShortPrompt rows each, in at most half of the rows
//   that are
//      left: whoever sends a short prompt does not wait for everybody's long ones
//   3. the other prompts in chunks, in the order they come; beside short ones they get a smaller part of the
//   step, so
//      that it ends sooner
// A sequence that wanted rows and got none kMaxPassedOver steps in a row goes before all others.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/api/step_costs.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::batching {

struct RunnableSequence {
  base::SequenceId id;
  absl::Span<const base::TokenId> tokens;  // all that are known; [num_computed, end) are pending
  std::int64_t num_computed = 0;
  std::int64_t reachable_end = 0;                 // blocks can be had for positions before this one
  const api::SamplingParams* sampling = nullptr;  // nullptr: nothing is drawn (prefill only)
  std::int64_t num_prompt = 0;                    // of `tokens`
  std::int32_t top_logprobs = -1;                 // as in PlanSpan
  std::int32_t prompt_logprobs = -1;              // at least 0: the prompt is scored
  absl::Span<const base::TokenId> masked = {};    // for the next draw
  bool ran_last_step = false;
  std::int64_t times_passed_over = 0;  // steps in a row in which it wanted rows and got none
};

struct ComposerSnapshot {
  base::StepId step;
  std::int64_t max_rows = 0;
  std::int64_t max_sequences = 0;
  std::int64_t max_chunk = 0;               // rows of one prompt in one step; 0: max_rows
  std::vector<RunnableSequence> sequences;  // higher priority first, then in the order they arrived
  const api::StepCosts* costs = nullptr;    // never null
};

inline constexpr std::int64_t kShortPrompt = 64;
inline constexpr std::int64_t kMaxPassedOver = 32;

// A pure function. Where more sequences decode than the step takes, those of the last step go on (its experts
// are there), and free places go to whoever adds the least predicted demand. A prompt's chunk that is cut
// below the break-even is left for a later step, unless it would be the step's only span. Where a span's
// blocks lie is left open (PlanSpan::groups is empty): whoever owns the blocks fills it in. A span that
// reaches the end of its sequence's tokens samples. A row of a prompt that is scored scores the prompt's next
// token. Other rows want no logits. A sequence that cannot grow gets no span.
api::StepPlan ComposeStep(const ComposerSnapshot& snapshot);

}  // namespace comoe::batching
