// Which blocks hold which sequence's state: a pool of blocks for each cache group, which the engine has
// reserved, and an index of prefixes that are in them already. Ids only; the bytes are the engine's.
//
// Prefix reuse follows vLLM's automatic prefix caching (whole blocks, chained, least recently used first
// out), but compares tokens instead of hashes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/engine.h"
#include "engine/api/model_info.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "scheduler/batching/block_pool.h"
#include "scheduler/batching/prefix_index.h"

namespace comoe::batching {

// Owned by the engine thread.
//
// Invariants: (1) a block is free, and then on its pool's free list exactly once, or held by as many states
// as it has holders; used + cached + free blocks are the pool. (2) Blocks change hands between steps only, so
// that no kernel touches a block its sequence no longer has. (3) A prefix is in the index only after its rows
// were computed. (4) A block that more than one state holds, or that is in the index, is never written: only
// whole blocks are shared.
class KvBlockManager {
 public:
  // A sequence's. Empty before AttachPrefix and Extend, and after Release.
  struct State {
    std::vector<api::GroupState> groups;  // one for each cache group
    // Of its whole blocks, those that Publish has seen, and the prefix that they are.
    std::int64_t num_published = 0;
    std::uint64_t prefix = 0;

    bool empty() const { return groups.empty(); }
  };
  struct Counts {
    std::int64_t used = 0;    // held
    std::int64_t cached = 0;  // free, and in the index
    std::int64_t free = 0;    // free, with nothing of use
    std::int64_t total() const { return used + cached + free; }
  };

  // Whether several states can all grow, out of what is free now.
  class Demand {
   public:
    explicit Demand(const KvBlockManager& blocks) : blocks_(blocks), wanted_(blocks.pools_.size(), 0) {}
    // Of a state whose next row is at `start`, to hold positions up to `end` as they are computed in chunks
    // of `chunk` rows: a window gives blocks back on the way.
    void Add(const State& state, std::int64_t start, std::int64_t end, std::int64_t chunk);
    void AddSpare(std::int64_t blocks);  // in each group
    bool Fits() const;

   private:
    const KvBlockManager& blocks_;
    std::vector<std::int64_t> wanted_;  // blocks, of each group
  };

  // num_blocks: of each group, blocks; of a recurrent group, slots. Prefixes are reused only if
  // `reuse_prefixes`, and if all groups are kept in blocks of the same size.
  KvBlockManager(std::vector<api::CacheGroup> groups, absl::Span<const std::int32_t> num_blocks,
                 bool reuse_prefixes);

  bool reuses_prefixes() const { return prefix_block_tokens_ > 0; }

  // Positions [0, n) that one sequence, alone, may have.
  std::int64_t LongestSequence() const;
  // How far (exclusive) `state` can grow now, if its next row is at `start`; at most `end`.
  std::int64_t ReachableEnd(const State& state, std::int64_t start, std::int64_t end) const;

  // Gives an empty state the longest prefix of `tokens` that is in the index, shorter than `tokens` (the last
  // token is always computed: it gives the logits). Returns how many positions that are.
  std::int64_t AttachPrefix(State& state, absl::string_view salt, absl::Span<const base::TokenId> tokens);
  // Makes room for rows [start, end), start being the first position not yet computed. Blocks wholly before
  // the window of the row at `start` are given back first and become kNoBlock. RESOURCE_EXHAUSTED: it does
  // not fit, and nothing was changed.
  absl::Status Extend(State& state, std::int64_t start, std::int64_t end);
  // Positions [0, tokens.size()) of the state have been computed: its whole blocks may serve others from now
  // on.
  void Publish(State& state, absl::string_view salt, absl::Span<const base::TokenId> tokens);
  // Gives everything back.
  void Release(State& state);
  // Forgets every prefix; blocks that are held stay so. How many blocks became free of use.
  std::int64_t ForgetPrefixes();

  // Over all groups, slots included.
  Counts counts() const;

  // Invariants 1 and 3, given all states there are. Costs a pass over every pool: for debug builds.
  bool IsConsistent(absl::Span<const State* const> states) const;

 private:
  struct Pool {
    Pool(const api::CacheGroup& cache_group, std::int32_t num_blocks)
        : group(cache_group), blocks(num_blocks), content(static_cast<std::size_t>(num_blocks), nullptr) {}
    bool recurrent() const { return group.kind == api::CacheGroup::Kind::kRecurrent; }

    api::CacheGroup group;
    BlockPool blocks;
    std::vector<Prefix*> content;  // of each block: the prefix whose last block it holds, or null
    std::int64_t num_cached = 0;   // free blocks with content
  };

  // Entries of the block table that lie wholly before the window of a row at `start`.
  static std::int64_t NumExpired(const Pool& pool, std::int64_t start);
  // Blocks among them that are held by this state alone: giving them back makes them free.
  static std::int64_t NumReleasable(const Pool& pool, const api::GroupState& state, std::int64_t start);

  base::BlockId Take(std::size_t group);
  void Share(std::size_t group, base::BlockId block);
  void Drop(std::size_t group, base::BlockId block);
  // The index no longer knows what the block holds.
  void Forget(std::size_t group, base::BlockId block);
  void GiveBackExpired(std::size_t group, api::GroupState& state, std::int64_t start);
  // How many of the first blocks of `found` a state can begin with: a window group must have those that the
  // next row sees.
  std::int64_t NumUsable(absl::Span<const Prefix* const> found) const;

  std::vector<Pool> pools_;
  std::int64_t prefix_block_tokens_ = 0;  // 0: prefixes are not reused
  PrefixIndex index_;
};

}  // namespace comoe::batching
