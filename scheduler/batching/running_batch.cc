#include "scheduler/batching/running_batch.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "engine/base/check.h"
#include "scheduler/batching/batch_composer.h"

namespace comoe::batching {
namespace {

std::int64_t NumTokens(const Sequence& sequence) { return static_cast<std::int64_t>(sequence.tokens.size()); }

// Positions that a sequence can ever need.
std::int64_t LastEnd(const Sequence& sequence) {
  return sequence.num_prompt + (sequence.request.prefill_only ? 0 : sequence.limit.max_new_tokens);
}

bool RanksBefore(const Sequence* a, const Sequence* b) {
  return std::pair(-a->request.priority, a->id) < std::pair(-b->request.priority, b->id);
}

}  // namespace

RunningBatch::RunningBatch(const api::Engine& engine, const BatchLimits& limits, const api::StepCosts& costs)
    : limits_{std::max<std::int64_t>(1, std::min(limits.max_rows, engine.capacity().max_rows)),
              std::max<std::int64_t>(1, std::min(limits.max_sequences, engine.capacity().max_sequences)),
              limits.max_chunk, limits.reuse_prefixes},
      costs_(costs),
      blocks_(engine.model_info().cache_groups, engine.capacity().num_blocks, limits.reuse_prefixes),
      max_positions_(std::min(engine.capacity().max_positions, blocks_.LongestSequence())) {}

std::vector<Sequence*> RunningBatch::InRank() {
  std::vector<Sequence*> ranked = sequences_.InOrder();
  std::stable_sort(ranked.begin(), ranked.end(), RanksBefore);
  return ranked;
}

// Whether the memory that is free holds what all running prompts still have to compute, what this one has,
// and one block more for each decode, which may need it any moment.
bool RunningBatch::Fits(const Sequence& sequence) const {
  const std::int64_t chunk = limits_.max_chunk > 0 ? limits_.max_chunk : limits_.max_rows;
  KvBlockManager::Demand demand(blocks_);
  for (const Sequence* running : std::as_const(sequences_).InOrder()) {
    if (running->num_pending() > 1) {
      demand.Add(running->blocks, running->num_computed, NumTokens(*running), chunk);
    } else {
      demand.AddSpare(1);
    }
  }
  const bool keeps = sequence.preemptions >= kMaxPreemptions;
  demand.Add(sequence.blocks, sequence.num_computed, keeps ? LastEnd(sequence) : NumTokens(sequence), chunk);
  return demand.Fits();
}

bool RunningBatch::TryAdmit(std::unique_ptr<Sequence>& sequence) {
  if (sequences_.size() >= limits_.max_sequences) {
    return false;
  }
  Sequence& candidate = *sequence;
  COMOE_DCHECK(candidate.num_prompt <= max_positions_, "what can never fit is refused by Submit");
  // A prompt that is scored needs its logits, which no block holds.
  if (candidate.request.prompt_logprobs < 0) {
    candidate.num_computed =
        blocks_.AttachPrefix(candidate.blocks, candidate.request.cache_salt, candidate.tokens);
  }
  if (!sequences_.empty() && !Fits(candidate)) {
    blocks_.Release(candidate.blocks);
    candidate.num_computed = 0;
    return false;
  }
  if (candidate.preemptions >= kMaxPreemptions) {
    // Fails only for the only one, which has all memory anyway.
    blocks_.Extend(candidate.blocks, candidate.num_computed, LastEnd(candidate)).IgnoreError();
  }
  candidate.num_cached = candidate.num_computed;
  candidate.MoveTo(SequenceState::kPrefilling);
  sequences_.Add(std::move(sequence));
  return true;
}

ComposerSnapshot RunningBatch::MakeSnapshot(base::StepId step, absl::Span<Sequence* const> ranked) const {
  ComposerSnapshot snapshot;
  snapshot.step = step;
  snapshot.max_rows = limits_.max_rows;
  snapshot.max_sequences = limits_.max_sequences;
  snapshot.max_chunk = limits_.max_chunk;
  snapshot.costs = &costs_;
  snapshot.sequences.reserve(ranked.size());
  for (const Sequence* sequence : ranked) {
    RunnableSequence runnable;
    runnable.id = sequence->id;
    runnable.tokens = sequence->tokens;
    runnable.num_computed = sequence->num_computed;
    // A decode gets its block by preemption if it must.
    runnable.reachable_end =
        sequence->num_pending() == 1
            ? NumTokens(*sequence)
            : blocks_.ReachableEnd(sequence->blocks, sequence->num_computed, NumTokens(*sequence));
    runnable.sampling = sequence->request.prefill_only ? nullptr : &sequence->request.sampling;
    runnable.num_prompt = sequence->num_prompt;
    runnable.top_logprobs = sequence->request.top_logprobs;
    runnable.prompt_logprobs = sequence->request.prompt_logprobs;
    runnable.masked = sequence->masked_now();
    runnable.ran_last_step = sequence->ran_last_step;
    runnable.times_passed_over = sequence->steps_passed_over;
    snapshot.sequences.push_back(runnable);
  }
  return snapshot;
}

ComposedStep RunningBatch::Compose(base::StepId step) {
  ComposedStep composed;
  while (!sequences_.empty()) {
    const std::vector<Sequence*> ranked = InRank();
    composed.plan = ComposeStep(MakeSnapshot(step, ranked));
    GiveBlocks(ranked, composed);
    if (!composed.plan.spans.empty()) {
      NotePassedOver(InRank(), composed.plan);
      return composed;
    }
    // Prompts only, and no block for any of them: the first one goes on with what the last one has.
    Sequence* const victim = ranked.back();
    COMOE_CHECK(ranked.size() > 1, "one sequence alone always gets on");
    Preempt(*victim, composed);
  }
  composed.plan = api::StepPlan();
  composed.plan.step = step;
  return composed;
}

Sequence* RunningBatch::FindPutOff(const api::StepPlan& plan) {
  Sequence* first = nullptr;
  for (Sequence* sequence : sequences_.InOrder()) {
    const bool put_off = !sequence->hinted && sequence->state == SequenceState::kPrefilling &&
                         sequence->num_computed == sequence->num_cached &&
                         std::none_of(plan.spans.begin(), plan.spans.end(),
                                      [sequence](const auto& span) { return span.sequence == sequence->id; });
    if (put_off && (first == nullptr || RanksBefore(sequence, first))) {
      first = sequence;
    }
  }
  return first;
}

// One that waits would find its prefix in memory as one that starts does.
absl::Span<const base::TokenId> RunningBatch::FirstChunk(Sequence& sequence) {
  std::int64_t begin = sequence.num_computed;
  if (sequence.state == SequenceState::kWaiting && sequence.request.prompt_logprobs < 0) {
    begin = blocks_.AttachPrefix(sequence.blocks, sequence.request.cache_salt, sequence.tokens);
    blocks_.Release(sequence.blocks);
  }
  const std::int64_t chunk = limits_.max_chunk > 0 ? limits_.max_chunk : limits_.max_rows;
  return absl::MakeConstSpan(sequence.tokens)
      .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(std::min(chunk, limits_.max_rows)));
}

void RunningBatch::GiveBlocks(absl::Span<Sequence* const> ranked, ComposedStep& step) {
  std::vector<api::PlanSpan> planned = std::move(step.plan.spans);
  step.plan.spans.clear();
  for (api::PlanSpan& span : planned) {
    Sequence* const sequence = sequences_.Find(span.sequence);
    if (sequence == nullptr) {
      continue;  // preempted for a span before this one
    }
    const auto rows = static_cast<std::int64_t>(span.tokens.size());
    // A prompt's chunk takes free blocks only; if spans before it took them, it goes on later.
    const bool may_preempt = sequence->num_pending() == 1;
    if (Extend(*sequence, span.start_position + rows, may_preempt ? ranked : absl::Span<Sequence* const>(),
               step)) {
      span.groups = sequence->blocks.groups;
      step.plan.spans.push_back(std::move(span));
    }
  }
}

bool RunningBatch::Extend(Sequence& sequence, std::int64_t end, absl::Span<Sequence* const> ranked,
                          ComposedStep& step) {
  while (!blocks_.Extend(sequence.blocks, sequence.num_computed, end).ok()) {
    if (!PreemptOneAfter(sequence, ranked, step)) {
      return false;  // who ranks before it goes on, so it will too
    }
  }
  return true;
}

bool RunningBatch::PreemptOneAfter(const Sequence& sequence, absl::Span<Sequence* const> ranked,
                                   ComposedStep& step) {
  for (auto last = ranked.rbegin(); last != ranked.rend() && *last != &sequence; ++last) {
    // Those preempted in this step are in the ranking still, but not in the table.
    Sequence* const victim = *last;
    const bool runs = std::none_of(step.preempted.begin(), step.preempted.end(),
                                   [victim](const auto& preempted) { return preempted.get() == victim; });
    if (runs && victim->preemptions < kMaxPreemptions && victim->holds_blocks()) {
      Preempt(*victim, step);
      return true;
    }
  }
  return false;
}

void RunningBatch::Preempt(Sequence& sequence, ComposedStep& step) {
  step.plan.spans.erase(
      std::remove_if(step.plan.spans.begin(), step.plan.spans.end(),
                     [&](const api::PlanSpan& span) { return span.sequence == sequence.id; }),
      step.plan.spans.end());
  std::unique_ptr<Sequence> preempted = Remove(sequence.id);
  preempted->MoveTo(SequenceState::kWaiting);
  preempted->num_recomputed += preempted->num_computed;
  preempted->num_computed = 0;
  preempted->ran_last_step = false;
  preempted->steps_passed_over = 0;
  ++preempted->preemptions;
  step.preempted.push_back(std::move(preempted));
}

void RunningBatch::NotePassedOver(absl::Span<Sequence* const> ranked, const api::StepPlan& plan) {
  absl::flat_hash_set<base::SequenceId> planned;
  planned.reserve(plan.spans.size());
  for (const api::PlanSpan& span : plan.spans) {
    planned.insert(span.sequence);
  }
  for (Sequence* sequence : ranked) {
    sequence->ran_last_step = planned.contains(sequence->id);
    sequence->steps_passed_over = sequence->ran_last_step ? 0 : sequence->steps_passed_over + 1;
  }
}

void RunningBatch::Account(const api::StepPlan& plan) {
  for (const api::PlanSpan& span : plan.spans) {
    if (sequences_.Find(span.sequence) == nullptr) {
      continue;  // it failed in this step
    }
    Sequence& sequence = *sequences_.Find(span.sequence);
    sequence.num_computed += static_cast<std::int64_t>(span.tokens.size());
    blocks_.Publish(
        sequence.blocks, sequence.request.cache_salt,
        absl::MakeConstSpan(sequence.tokens).first(static_cast<std::size_t>(sequence.num_computed)));
  }
}

std::unique_ptr<Sequence> RunningBatch::Remove(base::SequenceId id) {
  std::unique_ptr<Sequence> sequence = sequences_.Remove(id);
  if (sequence != nullptr) {
    blocks_.Release(sequence->blocks);
  }
  return sequence;
}

bool RunningBatch::IsConsistent(const api::StepPlan& plan) {
  std::vector<const KvBlockManager::State*> states;
  for (const Sequence* sequence : sequences_.InOrder()) {
    states.push_back(&sequence->blocks);
    if (sequence->num_computed < 0 || sequence->num_pending() < 1) {
      return false;
    }
  }
  if (!blocks_.IsConsistent(states)) {
    return false;
  }
  for (const api::PlanSpan& span : plan.spans) {
    const Sequence* const sequence = sequences_.Find(span.sequence);
    if (sequence == nullptr || span.start_position != sequence->num_computed || span.tokens.empty() ||
        (sequence->num_pending() == 1 && span.tokens.size() != 1)) {
      return false;
    }
  }
  const auto num_spans = static_cast<std::int64_t>(plan.spans.size());
  return plan.num_rows() <= limits_.max_rows && num_spans >= 1 && num_spans <= limits_.max_sequences;
}

}  // namespace comoe::batching
