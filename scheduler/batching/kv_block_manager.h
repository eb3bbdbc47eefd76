// Which blocks hold which sequence's state: one free list per cache group, over the pools the engine has
// reserved. Ids only; the bytes are the engine's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/engine.h"
#include "engine/api/model_info.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::batching {

// A sequence's state is a std::vector<api::GroupState>, one for each cache group, empty before Extend and
// after Release. Owned by the engine thread.
//
// Invariants: (1) a block is on its group's free list exactly once or in exactly one state; (2) blocks change
// hands between steps only, so that no kernel touches a block its sequence no longer has.
class KvBlockManager {
 public:
  using State = std::vector<api::GroupState>;

  // num_blocks: of each group, blocks; of a recurrent group, slots.
  KvBlockManager(std::vector<api::CacheGroup> groups, absl::Span<const std::int32_t> num_blocks);

  // Positions [0, n) that one sequence, alone, may have.
  std::int64_t LongestSequence() const;
  // How far (exclusive) `state` can grow now, if its next row is at `start`; at most `end`.
  std::int64_t ReachableEnd(const State& state, std::int64_t start, std::int64_t end) const;

  // Makes room for rows [start, end), start being the first position not yet computed. Blocks wholly before
  // the window of the row at `start` are given back first and become kNoBlock. RESOURCE_EXHAUSTED: it does
  // not fit, and nothing was changed.
  absl::Status Extend(State& state, std::int64_t start, std::int64_t end);
  // Gives everything back.
  void Release(State& state);

  // Over all groups, slots included.
  std::int64_t total_blocks() const;
  std::int64_t used_blocks() const;

  // Invariant 1, given all states there are. Costs a pass over every pool: for debug builds.
  bool IsConsistent(absl::Span<const State* const> states) const;

 private:
  struct Pool {
    api::CacheGroup group;
    std::int32_t num_blocks = 0;
    std::vector<base::BlockId> free;  // a stack: the block used last is the one most likely still cached

    bool recurrent() const { return group.kind == api::CacheGroup::Kind::kRecurrent; }
    base::BlockId Take();
    void Give(base::BlockId block);
  };

  // Entries of the block table that lie wholly before the window of a row at `start`.
  static std::int64_t NumExpired(const Pool& pool, std::int64_t start);
  // Blocks among them that are still held.
  static std::int64_t NumReleasable(const Pool& pool, const api::GroupState& state, std::int64_t start);

  std::vector<Pool> pools_;
};

}  // namespace comoe::batching
