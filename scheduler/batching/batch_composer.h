// Which rows the next step computes.
//
// There are no phases: a sequence has tokens of which some are computed, and a step gives it rows until
// computed catches up. Sequences with one row to go (decodes) come first, then the others in chunks, in the
// order they arrived, while the budget lasts.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::batching {

struct RunnableSequence {
  base::SequenceId id;
  absl::Span<const base::TokenId> tokens;  // all that are known; [num_computed, end) are pending
  std::int64_t num_computed = 0;
  std::int64_t reachable_end = 0;  // blocks can be had for positions before this one
  const api::SamplingParams* sampling = nullptr;
};

struct ComposerSnapshot {
  base::StepId step;
  std::int64_t max_rows = 0;
  std::int64_t max_sequences = 0;
  std::vector<RunnableSequence> sequences;  // in the order they arrived
};

// A pure function. Where a span's blocks lie is left open (PlanSpan::groups is empty): whoever owns the
// blocks fills it in. A span that reaches the end of its sequence's tokens samples; others want no logits. A
// sequence that cannot grow gets no span.
api::StepPlan ComposeStep(const ComposerSnapshot& snapshot);

}  // namespace comoe::batching
