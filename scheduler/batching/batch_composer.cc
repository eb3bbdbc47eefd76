#include "scheduler/batching/batch_composer.h"

#include <algorithm>
#include <utility>

namespace comoe::batching {
namespace {

std::int64_t NumPending(const RunnableSequence& sequence) {
  return static_cast<std::int64_t>(sequence.tokens.size()) - sequence.num_computed;
}

api::PlanSpan MakeSpan(const RunnableSequence& sequence, std::int64_t num_rows) {
  const auto first = sequence.tokens.begin() + sequence.num_computed;
  api::PlanSpan span;
  span.sequence = sequence.id;
  span.start_position = sequence.num_computed;
  span.tokens.assign(first, first + num_rows);
  if (num_rows == NumPending(sequence)) {
    span.logits = api::LogitsMode::kLast;
    span.sample = *sequence.sampling;
  }
  return span;
}

}  // namespace

api::StepPlan ComposeStep(const ComposerSnapshot& snapshot) {
  api::StepPlan plan;
  plan.step = snapshot.step;
  std::int64_t rows_left = snapshot.max_rows;
  for (const bool decodes : {true, false}) {
    for (const RunnableSequence& sequence : snapshot.sequences) {
      if (rows_left == 0 || static_cast<std::int64_t>(plan.spans.size()) == snapshot.max_sequences) {
        return plan;
      }
      if ((NumPending(sequence) == 1) != decodes) {
        continue;
      }
      const std::int64_t growth = sequence.reachable_end - sequence.num_computed;
      const std::int64_t num_rows = std::min({NumPending(sequence), rows_left, growth});
      if (num_rows > 0) {
        plan.spans.push_back(MakeSpan(sequence, num_rows));
        rows_left -= num_rows;
      }
    }
  }
  return plan;
}

}  // namespace comoe::batching
