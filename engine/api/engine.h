// The engine as scheduler and server see it: it runs steps. It knows no requests, queues or clients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/model_info.h"
#include "engine/api/offload.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::api {

// Limits fixed at start.
struct EngineCapacity {
  std::int64_t max_rows = 0;             // of a step
  std::int64_t max_sequences = 0;        // spans of a step
  std::vector<std::int32_t> num_blocks;  // per cache group: block ids are [0, num_blocks)
  std::int64_t max_positions = 0;        // a sequence may have: the context, or what the blocks hold
  std::uint64_t kv_bytes = 0;            // of all blocks
  std::uint64_t workspace_bytes = 0;     // of a step's intermediate results
};

// A copy of a sequence's state, to be put back later into the same or other blocks.
struct StateSnapshot {
  std::int64_t num_tokens = 0;
  std::vector<std::vector<std::byte>> groups;
};

// Owned by one thread, the engine thread; every method is called there. A failed Step changes no state that a
// later plan relies on: the positions of its spans may hold rubbish, those before them are as they were.
class Engine {
 public:
  virtual ~Engine() = default;

  virtual const ModelInfo& model_info() const = 0;
  virtual const EngineCapacity& capacity() const = 0;

  // Runs all spans, layer by layer, and samples. A row's result does not depend on the other rows of the
  // step. INVALID_ARGUMENT: the plan breaks a limit or names a token, block or position out of range (nothing
  // was run). INTERNAL: a device failed, or host work did so late. An expert that cannot be had fails the
  // spans that need it, not the step (SpanResult::status).
  virtual absl::StatusOr<StepResult> Step(const StepPlan& plan) = 0;

  // Not OK once every step fails for good, and only a new process helps: its device is lost.
  virtual absl::Status health() const { return absl::OkStatus(); }

  // Between steps. A request waits, and the first rows it will compute are these tokens: experts may be
  // fetched ahead. At most once for each request. Costs next to nothing where nobody makes use of it.
  virtual void HintPrompt(absl::Span<const base::TokenId> /*tokens*/) {}

  // Sums over all steps so far. All zero where experts need no serving.
  virtual OffloadTotals offload_totals() const { return {}; }

  // Forgets positions >= num_tokens of a sequence's state (drafts refused, stop strings, preemption). Groups
  // kept in blocks need nothing: positions are overwritten. UNIMPLEMENTED where a group cannot go back.
  virtual absl::Status Truncate(base::SequenceId sequence, std::int64_t num_tokens) = 0;
  // Copies the state of positions [0, num_tokens) out of, or into, the given places.
  virtual absl::StatusOr<StateSnapshot> Snapshot(const std::vector<GroupState>& groups,
                                                 std::int64_t num_tokens) = 0;
  virtual absl::Status Restore(const StateSnapshot& snapshot, const std::vector<GroupState>& groups) = 0;
};

}  // namespace comoe::api
