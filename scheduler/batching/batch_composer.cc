#include "scheduler/batching/batch_composer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace comoe::batching {
namespace {

std::int64_t NumPending(const RunnableSequence& sequence) {
  return static_cast<std::int64_t>(sequence.tokens.size()) - sequence.num_computed;
}

void SetDraw(const RunnableSequence& sequence, api::PlanSpan& span) {
  span.logits = api::LogitsMode::kLast;
  span.sample = *sequence.sampling;
  span.top_logprobs = sequence.top_logprobs;
  span.context.masked.assign(sequence.masked.begin(), sequence.masked.end());
  if (span.sample->penalises()) {
    span.context.tokens.assign(sequence.tokens.begin(), sequence.tokens.end());
    span.context.num_prompt = sequence.num_prompt;
  }
}

// The row at position p scores the token at p + 1, as long as that belongs to the prompt.
void SetScore(const RunnableSequence& sequence, api::PlanSpan& span) {
  const std::int64_t begin = span.start_position + 1;
  const std::int64_t end =
      std::min(begin + static_cast<std::int64_t>(span.tokens.size()), sequence.num_prompt);
  if (begin < end) {
    span.logits = api::LogitsMode::kAll;
    span.score.assign(sequence.tokens.begin() + begin, sequence.tokens.begin() + end);
    span.score_top_logprobs = sequence.prompt_logprobs;
  }
}

api::PlanSpan MakeSpan(const RunnableSequence& sequence, std::int64_t num_rows) {
  const auto first = sequence.tokens.begin() + sequence.num_computed;
  api::PlanSpan span;
  span.sequence = sequence.id;
  span.start_position = sequence.num_computed;
  span.tokens.assign(first, first + num_rows);
  if (num_rows == NumPending(sequence) && sequence.sampling != nullptr) {
    SetDraw(sequence, span);
  }
  if (sequence.prompt_logprobs >= 0) {
    SetScore(sequence, span);
  }
  return span;
}

using Sequences = std::vector<const RunnableSequence*>;

bool Overdue(const RunnableSequence& sequence) { return sequence.times_passed_over >= kMaxPassedOver; }

// Leaves `places` of the decodes, in their order.
void ChooseDecodes(const api::StepCosts& costs, std::int64_t places, Sequences& decodes) {
  const auto is_first = [](const RunnableSequence* a, const RunnableSequence* b) {
    return std::pair(!Overdue(*a), !a->ran_last_step) < std::pair(!Overdue(*b), !b->ran_last_step);
  };
  Sequences candidates = decodes;
  std::stable_sort(candidates.begin(), candidates.end(), is_first);
  Sequences chosen;
  std::vector<base::SequenceId> ids;
  const auto choose = [&](Sequences::iterator which) {
    chosen.push_back(*which);
    ids.push_back((*which)->id);
    candidates.erase(which);
  };
  while (static_cast<std::int64_t>(chosen.size()) < places) {
    if (Overdue(*candidates.front()) || candidates.front()->ran_last_step) {
      choose(candidates.begin());
      continue;
    }
    auto cheapest = candidates.begin();
    double least = costs.AddedDemand(ids, (*cheapest)->id);
    for (auto other = cheapest + 1; other != candidates.end(); ++other) {
      if (const double demand = costs.AddedDemand(ids, (*other)->id); demand < least) {
        least = demand;
        cheapest = other;
      }
    }
    choose(cheapest);
  }
  const absl::flat_hash_set<base::SequenceId> kept(ids.begin(), ids.end());
  decodes.erase(
      std::remove_if(decodes.begin(), decodes.end(),
                     [&kept](const RunnableSequence* sequence) { return !kept.contains(sequence->id); }),
      decodes.end());
}

// A plan in the making.
class Plan {
 public:
  explicit Plan(const ComposerSnapshot& snapshot) : snapshot_(snapshot), rows_left_(snapshot.max_rows) {
    plan_.step = snapshot.step;
    plan_.spans.reserve(static_cast<std::size_t>(std::min<std::int64_t>(
        snapshot.max_sequences, static_cast<std::int64_t>(snapshot.sequences.size()))));
  }

  std::int64_t rows_left() const { return rows_left_; }
  std::int64_t places_left() const {
    return std::min(rows_left_, snapshot_.max_sequences - static_cast<std::int64_t>(plan_.spans.size()));
  }
  bool empty() const { return plan_.spans.empty(); }
  // As many rows as the sequence can use, at most `most`; false if that is none.
  bool Add(const RunnableSequence& sequence, std::int64_t most) {
    const std::int64_t growth = sequence.reachable_end - sequence.num_computed;
    const std::int64_t rows = std::min({NumPending(sequence), rows_left_, growth, most});
    if (rows <= 0 || places_left() == 0) {
      return false;
    }
    plan_.spans.push_back(MakeSpan(sequence, rows));
    rows_left_ -= rows;
    return true;
  }
  api::StepPlan Take() { return std::move(plan_); }

 private:
  const ComposerSnapshot& snapshot_;
  std::int64_t rows_left_;
  api::StepPlan plan_;
};

void AddPrompts(const ComposerSnapshot& snapshot, const Sequences& prompts, Plan& plan) {
  const std::int64_t chunk = snapshot.max_chunk > 0 ? snapshot.max_chunk : snapshot.max_rows;
  const std::int64_t half = plan.rows_left() / 2;
  std::int64_t short_rows = 0;
  Sequences others;
  for (const RunnableSequence* prompt : prompts) {
    const std::int64_t pending = NumPending(*prompt);
    if (pending <= std::min(kShortPrompt, half - short_rows) && plan.Add(*prompt, chunk)) {
      short_rows += pending;
    } else {
      others.push_back(prompt);
    }
  }
  // Who is in a hurry is not made to wait for a whole step of others' chunks.
  std::int64_t rows_left = short_rows > 0 ? std::max(half - short_rows, half / 2) : plan.rows_left();
  for (const RunnableSequence* prompt : others) {
    const std::int64_t rows = std::min({NumPending(*prompt), chunk, rows_left});
    const bool pays =
        rows == NumPending(*prompt) || rows == chunk || rows >= snapshot.costs->BreakEvenChunk();
    if (rows > 0 && (pays || Overdue(*prompt) || plan.empty()) && plan.Add(*prompt, rows)) {
      rows_left -= rows;
    }
  }
}

}  // namespace

api::StepPlan ComposeStep(const ComposerSnapshot& snapshot) {
  Sequences overdue;
  Sequences decodes;
  Sequences prompts;
  for (const RunnableSequence& sequence : snapshot.sequences) {
    if (NumPending(sequence) > 1) {
      (Overdue(sequence) ? overdue : prompts).push_back(&sequence);
    } else if (sequence.reachable_end > sequence.num_computed) {
      decodes.push_back(&sequence);
    }
  }
  Plan plan(snapshot);
  // A prompt that is overdue takes one row at least before the decodes, which then leave it no more.
  for (const RunnableSequence* prompt : overdue) {
    plan.Add(*prompt,
             std::max<std::int64_t>(1, plan.rows_left() - static_cast<std::int64_t>(decodes.size())));
  }
  if (static_cast<std::int64_t>(decodes.size()) > plan.places_left()) {
    ChooseDecodes(*snapshot.costs, plan.places_left(), decodes);
  }
  for (const RunnableSequence* decode : decodes) {
    plan.Add(*decode, 1);
  }
  AddPrompts(snapshot, prompts, plan);
  return plan.Take();
}

}  // namespace comoe::batching
