#include "scheduler/batching/kv_block_manager.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"

namespace comoe::batching {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

std::int64_t Size(const std::vector<base::BlockId>& blocks) {
  return static_cast<std::int64_t>(blocks.size());
}

}  // namespace

base::BlockId KvBlockManager::Pool::Take() {
  COMOE_DCHECK(!free.empty(), "a block is taken only where one is free");
  const base::BlockId block = free.back();
  free.pop_back();
  return block;
}

void KvBlockManager::Pool::Give(base::BlockId block) {
  COMOE_DCHECK(block.value >= 0 && block.value < num_blocks, "only blocks of the pool come back to it");
  free.push_back(block);
  COMOE_DCHECK(Size(free) <= num_blocks, "a block is given back once");
}

KvBlockManager::KvBlockManager(std::vector<api::CacheGroup> groups,
                               absl::Span<const std::int32_t> num_blocks) {
  COMOE_CHECK(groups.size() == num_blocks.size(), "the engine reserves a pool for each cache group");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    Pool pool;
    pool.group = groups[i];
    pool.num_blocks = num_blocks[i];
    COMOE_CHECK(pool.recurrent() || pool.group.block_tokens > 0, "a block holds positions");
    for (std::int32_t block = pool.num_blocks - 1; block >= 0; --block) {
      pool.free.push_back(base::BlockId{block});
    }
    pools_.push_back(std::move(pool));
  }
}

std::int64_t KvBlockManager::NumExpired(const Pool& pool, std::int64_t start) {
  if (pool.group.kind != api::CacheGroup::Kind::kWindowKv) {
    return 0;
  }
  // The row at `start` sees positions (start - window, start].
  const std::int64_t first_seen = std::max<std::int64_t>(0, start - pool.group.window_tokens + 1);
  return first_seen / pool.group.block_tokens;
}

std::int64_t KvBlockManager::NumReleasable(const Pool& pool, const api::GroupState& state,
                                           std::int64_t start) {
  const std::int64_t expired = std::min(NumExpired(pool, start), Size(state.blocks));
  std::int64_t held = 0;
  // Backwards: once a block is gone, so are all before it.
  for (std::int64_t i = expired - 1; i >= 0 && state.blocks[static_cast<std::size_t>(i)] != base::kNoBlock;
       --i) {
    ++held;
  }
  return held;
}

std::int64_t KvBlockManager::LongestSequence() const {
  std::int64_t longest = kUnlimited;
  for (const Pool& pool : pools_) {
    if (pool.recurrent()) {
      longest = std::min(longest, pool.num_blocks > 0 ? kUnlimited : 0);
      continue;
    }
    // A window of w positions lies in at most this many blocks, wherever it begins; with those it can move on
    // for ever, a row at a time.
    const std::int64_t window_blocks =
        (pool.group.window_tokens + pool.group.block_tokens - 2) / pool.group.block_tokens + 1;
    if (pool.group.kind != api::CacheGroup::Kind::kWindowKv || pool.num_blocks < window_blocks) {
      longest = std::min(longest, static_cast<std::int64_t>(pool.num_blocks) * pool.group.block_tokens);
    }
  }
  return longest;
}

std::int64_t KvBlockManager::ReachableEnd(const State& state, std::int64_t start, std::int64_t end) const {
  const api::GroupState none;
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    const api::GroupState& group = state.empty() ? none : state[i];
    if (pool.recurrent()) {
      end = group.slot >= 0 || !pool.free.empty() ? end : start;
      continue;
    }
    const std::int64_t blocks = Size(group.blocks) + Size(pool.free) + NumReleasable(pool, group, start);
    end = std::min(end, blocks * pool.group.block_tokens);
  }
  return std::max(start, end);
}

absl::Status KvBlockManager::Extend(State& state, std::int64_t start, std::int64_t end) {
  if (const std::int64_t reachable = ReachableEnd(state, start, end); reachable < end) {
    return absl::ResourceExhaustedError(absl::StrCat("KV blocks for positions up to ", end,
                                                     " are wanted, those free reach up to ", reachable));
  }
  state.resize(pools_.size());
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    api::GroupState& group = state[i];
    if (pool.recurrent()) {
      if (group.slot < 0) {
        group.slot = pool.Take().value;
      }
      continue;
    }
    const std::int64_t expired = std::min(NumExpired(pool, start), Size(group.blocks));
    for (std::int64_t held = NumReleasable(pool, group, start); held > 0; --held) {
      base::BlockId& block = group.blocks[static_cast<std::size_t>(expired - held)];
      pool.Give(std::exchange(block, base::kNoBlock));
    }
    const std::int64_t wanted = (end + pool.group.block_tokens - 1) / pool.group.block_tokens;
    while (Size(group.blocks) < wanted) {
      group.blocks.push_back(pool.Take());
    }
  }
  return absl::OkStatus();
}

void KvBlockManager::Release(State& state) {
  for (std::size_t i = 0; i < state.size(); ++i) {
    // Backwards, so that the next sequence gets the first blocks first.
    for (auto block = state[i].blocks.rbegin(); block != state[i].blocks.rend(); ++block) {
      if (*block != base::kNoBlock) {
        pools_[i].Give(*block);
      }
    }
    if (state[i].slot >= 0) {
      pools_[i].Give(base::BlockId{state[i].slot});
    }
  }
  state.clear();
}

std::int64_t KvBlockManager::total_blocks() const {
  std::int64_t total = 0;
  for (const Pool& pool : pools_) {
    total += pool.num_blocks;
  }
  return total;
}

std::int64_t KvBlockManager::used_blocks() const {
  std::int64_t used = 0;
  for (const Pool& pool : pools_) {
    used += pool.num_blocks - Size(pool.free);
  }
  return used;
}

bool KvBlockManager::IsConsistent(absl::Span<const State* const> states) const {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    std::vector<int> owners(static_cast<std::size_t>(pool.num_blocks), 0);
    const auto count = [&owners](base::BlockId block) {
      if (block != base::kNoBlock) {
        ++owners[static_cast<std::size_t>(block.value)];
      }
    };
    std::for_each(pool.free.begin(), pool.free.end(), count);
    for (const State* state : states) {
      if (!state->empty()) {
        std::for_each((*state)[i].blocks.begin(), (*state)[i].blocks.end(), count);
        count(base::BlockId{(*state)[i].slot});
      }
    }
    if (!std::all_of(owners.begin(), owners.end(), [](int n) { return n == 1; })) {
      return false;
    }
  }
  return true;
}

}  // namespace comoe::batching
