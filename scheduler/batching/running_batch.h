// The sequences that run: whose turn it is to start, which rows the next step computes, who holds which
// blocks, and who has to give them back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/engine.h"
#include "engine/api/step_costs.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "scheduler/batching/batch_composer.h"
#include "scheduler/batching/kv_block_manager.h"
#include "scheduler/batching/sequence_table.h"

namespace comoe::batching {

struct BatchLimits {
  std::int64_t max_rows = 1;       // of a step
  std::int64_t max_sequences = 1;  // running at once
  std::int64_t max_chunk = 0;      // rows of one prompt in a step; 0: max_rows
  bool reuse_prefixes = true;
};

struct ComposedStep {
  api::StepPlan plan;
  // Lost their blocks, wait again, and are the caller's to queue. Nobody is admitted before the next step
  // then.
  std::vector<std::unique_ptr<Sequence>> preempted;
};

// Memory is given out as positions are computed, and taken back from whoever ranks last (lowest priority,
// latest arrival) when somebody ranking before it needs more: its rows are computed again later, as far as
// their blocks have been overwritten meanwhile (preemption by recompute, as in vLLM's V1 scheduler). The
// sequence that ranks first always gets on, so all of them end. Who has been preempted kMaxPreemptions times
// starts again only with all the memory it can ever need, and keeps it.
//
// Owned by the engine thread. Blocks change hands in TryAdmit, Compose and Remove only, which are called
// between steps.
class RunningBatch {
 public:
  static constexpr std::int64_t kMaxPreemptions = 3;

  // `costs` outlives the batch.
  RunningBatch(const api::Engine& engine, const BatchLimits& limits, const api::StepCosts& costs);

  bool empty() const { return sequences_.empty(); }
  std::int64_t size() const { return sequences_.size(); }
  std::int64_t max_positions() const { return max_positions_; }  // of a sequence
  KvBlockManager::Counts blocks() const { return blocks_.counts(); }

  Sequence* Find(base::SequenceId id) { return sequences_.Find(id); }
  std::vector<Sequence*> InOrder() { return sequences_.InOrder(); }

  // Takes a waiting sequence if there is a place and memory for what it has to compute; it is prefilling
  // then, with the prefix that is in memory already. Otherwise false, and nothing has changed. Always true
  // for the only one.
  bool TryAdmit(std::unique_ptr<Sequence>& sequence);
  // The next step; at least one span if somebody runs.
  ComposedStep Compose(base::StepId step);
  // Whose first chunk is put off by `plan`, the next step's, and was not told to the engine: the first in
  // rank. nullptr: nobody.
  Sequence* FindPutOff(const api::StepPlan& plan);
  // The rows that a sequence will compute first once it runs, or has begun to.
  absl::Span<const base::TokenId> FirstChunk(Sequence& sequence);
  // The plan's rows have been computed.
  void Account(const api::StepPlan& plan);
  // Takes a sequence out and its blocks back; nullptr if it does not run.
  std::unique_ptr<Sequence> Remove(base::SequenceId id);
  std::int64_t ForgetPrefixes() { return blocks_.ForgetPrefixes(); }

  // Invariants 1 to 3 and 7 of the scheduler (scheduler.cc) for a step about to run. For debug builds.
  bool IsConsistent(const api::StepPlan& plan);

 private:
  // Highest rank first.
  std::vector<Sequence*> InRank();
  ComposerSnapshot MakeSnapshot(base::StepId step, absl::Span<Sequence* const> ranked) const;
  bool Fits(const Sequence& sequence) const;
  // Gives the spans of a plan their blocks. A span that gets none, even by preemption, leaves the plan; if
  // that leaves none, the step has to be composed again.
  void GiveBlocks(absl::Span<Sequence* const> ranked, ComposedStep& step);
  bool Extend(Sequence& sequence, std::int64_t end, absl::Span<Sequence* const> ranked, ComposedStep& step);
  bool PreemptOneAfter(const Sequence& sequence, absl::Span<Sequence* const> ranked, ComposedStep& step);
  void Preempt(Sequence& sequence, ComposedStep& step);
  void NotePassedOver(absl::Span<Sequence* const> ranked, const api::StepPlan& plan);

  const BatchLimits limits_;
  const api::StepCosts& costs_;
  SequenceTable sequences_;
  KvBlockManager blocks_;
  const std::int64_t max_positions_;
};

}  // namespace comoe::batching
