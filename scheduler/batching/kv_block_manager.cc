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

std::int64_t BlocksFor(std::int64_t positions, std::int64_t block_tokens) {
  return (positions + block_tokens - 1) / block_tokens;
}

// The size of every group's blocks, 0 if they differ or a group is not kept in blocks.
std::int64_t CommonBlockTokens(const std::vector<api::CacheGroup>& groups) {
  for (const api::CacheGroup& group : groups) {
    if (group.block_tokens != groups.front().block_tokens) {
      return 0;
    }
  }
  return groups.empty() ? 0 : groups.front().block_tokens;
}

}  // namespace

KvBlockManager::KvBlockManager(std::vector<api::CacheGroup> groups, absl::Span<const std::int32_t> num_blocks,
                               bool reuse_prefixes)
    : prefix_block_tokens_(reuse_prefixes ? CommonBlockTokens(groups) : 0), index_(groups.size()) {
  COMOE_CHECK(groups.size() == num_blocks.size(), "the engine reserves a pool for each cache group");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    pools_.emplace_back(groups[i], num_blocks[i]);
    COMOE_CHECK(pools_.back().recurrent() || groups[i].block_tokens > 0, "a block holds positions");
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
  std::int64_t releasable = 0;
  // Backwards: once a block is gone, so are all before it.
  for (std::int64_t i = expired - 1; i >= 0 && state.blocks[static_cast<std::size_t>(i)] != base::kNoBlock;
       --i) {
    releasable += pool.blocks.holders(state.blocks[static_cast<std::size_t>(i)]) == 1 ? 1 : 0;
  }
  return releasable;
}

std::int64_t KvBlockManager::LongestSequence() const {
  std::int64_t longest = kUnlimited;
  for (const Pool& pool : pools_) {
    const auto num_blocks = static_cast<std::int64_t>(pool.blocks.num_blocks());
    if (pool.recurrent()) {
      longest = std::min(longest, num_blocks > 0 ? kUnlimited : 0);
      continue;
    }
    // A window of w positions lies in at most this many blocks, wherever it begins; with those it can move on
    // for ever, a row at a time.
    const std::int64_t window_blocks =
        (pool.group.window_tokens + pool.group.block_tokens - 2) / pool.group.block_tokens + 1;
    if (pool.group.kind != api::CacheGroup::Kind::kWindowKv || num_blocks < window_blocks) {
      longest = std::min(longest, num_blocks * pool.group.block_tokens);
    }
  }
  return longest;
}

std::int64_t KvBlockManager::ReachableEnd(const State& state, std::int64_t start, std::int64_t end) const {
  const api::GroupState none;
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    const api::GroupState& group = state.empty() ? none : state.groups[i];
    if (pool.recurrent()) {
      end = group.slot >= 0 || pool.blocks.num_free() > 0 ? end : start;
      continue;
    }
    const std::int64_t blocks =
        Size(group.blocks) + pool.blocks.num_free() + NumReleasable(pool, group, start);
    end = std::min(end, blocks * pool.group.block_tokens);
  }
  return std::max(start, end);
}

void KvBlockManager::Demand::Add(const State& state, std::int64_t start, std::int64_t end,
                                 std::int64_t chunk) {
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const Pool& pool = blocks_.pools_[i];
    if (pool.recurrent()) {
      wanted_[i] += !state.empty() && state.groups[i].slot >= 0 ? 0 : 1;
      continue;
    }
    const std::int64_t held = state.empty() ? 0 : Size(state.groups[i].blocks);
    std::int64_t more = std::max<std::int64_t>(0, BlocksFor(end, pool.group.block_tokens) - held);
    if (pool.group.kind == api::CacheGroup::Kind::kWindowKv && end - start > chunk) {
      // Never more than a window and a chunk at once, and one block at each end that is only partly in it.
      more = std::min(more, BlocksFor(pool.group.window_tokens + chunk, pool.group.block_tokens) + 1);
    }
    wanted_[i] += more;
  }
}

void KvBlockManager::Demand::AddSpare(std::int64_t blocks) {
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    wanted_[i] += blocks_.pools_[i].recurrent() ? 0 : blocks;
  }
}

bool KvBlockManager::Demand::Fits() const {
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i] > blocks_.pools_[i].blocks.num_free()) {
      return false;
    }
  }
  return true;
}

base::BlockId KvBlockManager::Take(std::size_t group) {
  Pool& pool = pools_[group];
  const base::BlockId block = pool.blocks.Take();
  if (pool.content[static_cast<std::size_t>(block.value)] != nullptr) {
    --pool.num_cached;
    Forget(group, block);
  }
  return block;
}

void KvBlockManager::Share(std::size_t group, base::BlockId block) {
  Pool& pool = pools_[group];
  pool.num_cached -= pool.blocks.holders(block) == 0 ? 1 : 0;
  pool.blocks.Share(block);
}

void KvBlockManager::Drop(std::size_t group, base::BlockId block) {
  Pool& pool = pools_[group];
  const bool keep = pool.content[static_cast<std::size_t>(block.value)] != nullptr;
  pool.blocks.Drop(block, keep);
  pool.num_cached += keep && pool.blocks.holders(block) == 0 ? 1 : 0;
}

void KvBlockManager::Forget(std::size_t group, base::BlockId block) {
  Prefix* const prefix = std::exchange(pools_[group].content[static_cast<std::size_t>(block.value)], nullptr);
  prefix->blocks[group] = base::kNoBlock;
  if (std::all_of(prefix->blocks.begin(), prefix->blocks.end(),
                  [](base::BlockId other) { return other == base::kNoBlock; })) {
    index_.Erase(prefix);
  }
}

std::int64_t KvBlockManager::NumUsable(absl::Span<const Prefix* const> found) const {
  const auto has = [&found](std::size_t group, std::int64_t i) {
    return found[static_cast<std::size_t>(i)]->blocks[group] != base::kNoBlock;
  };
  for (auto count = static_cast<std::int64_t>(found.size()); count > 0; --count) {
    bool usable = true;
    for (std::size_t group = 0; group < pools_.size() && usable; ++group) {
      for (std::int64_t i = NumExpired(pools_[group], count * prefix_block_tokens_); i < count && usable;
           ++i) {
        usable = has(group, i);
      }
    }
    if (usable) {
      return count;
    }
  }
  return 0;
}

std::int64_t KvBlockManager::AttachPrefix(State& state, absl::string_view salt,
                                          absl::Span<const base::TokenId> tokens) {
  COMOE_CHECK(state.empty(), "a prefix is attached before anything is computed");
  if (!reuses_prefixes() || tokens.empty()) {
    return 0;
  }
  const auto block_tokens = static_cast<std::size_t>(prefix_block_tokens_);
  std::vector<const Prefix*> found;
  std::uint64_t parent = 0;
  for (std::size_t i = 0; (i + 1) * block_tokens < tokens.size(); ++i) {
    const Prefix* const prefix = index_.Find(parent, salt, tokens.subspan(i * block_tokens, block_tokens));
    if (prefix == nullptr) {
      break;
    }
    found.push_back(prefix);
    parent = prefix->number;
  }
  const std::int64_t count = NumUsable(found);
  if (count == 0) {
    return 0;
  }
  state.groups.resize(pools_.size());
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    const std::int64_t expired = NumExpired(pools_[group], count * prefix_block_tokens_);
    state.groups[group].blocks.assign(static_cast<std::size_t>(count), base::kNoBlock);
    for (std::int64_t i = expired; i < count; ++i) {
      const base::BlockId block = found[static_cast<std::size_t>(i)]->blocks[group];
      Share(group, block);
      state.groups[group].blocks[static_cast<std::size_t>(i)] = block;
    }
  }
  state.num_published = count;
  state.prefix = found[static_cast<std::size_t>(count - 1)]->number;
  return count * prefix_block_tokens_;
}

void KvBlockManager::GiveBackExpired(std::size_t group, api::GroupState& state, std::int64_t start) {
  const std::int64_t expired = std::min(NumExpired(pools_[group], start), Size(state.blocks));
  // Backwards, so that of a window's past the oldest is overwritten last, as for a whole sequence.
  for (std::int64_t i = expired - 1; i >= 0; --i) {
    base::BlockId& block = state.blocks[static_cast<std::size_t>(i)];
    if (block == base::kNoBlock) {
      return;
    }
    Drop(group, std::exchange(block, base::kNoBlock));
  }
}

absl::Status KvBlockManager::Extend(State& state, std::int64_t start, std::int64_t end) {
  if (const std::int64_t reachable = ReachableEnd(state, start, end); reachable < end) {
    return absl::ResourceExhaustedError(absl::StrCat("KV blocks for positions up to ", end,
                                                     " are wanted, those free reach up to ", reachable));
  }
  state.groups.resize(pools_.size());
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    api::GroupState& group = state.groups[i];
    if (pool.recurrent()) {
      if (group.slot < 0) {
        group.slot = Take(i).value;
      }
      continue;
    }
    GiveBackExpired(i, group, start);
    const std::int64_t wanted = BlocksFor(end, pool.group.block_tokens);
    while (Size(group.blocks) < wanted) {
      group.blocks.push_back(Take(i));
    }
  }
  return absl::OkStatus();
}

void KvBlockManager::Publish(State& state, absl::string_view salt, absl::Span<const base::TokenId> tokens) {
  if (!reuses_prefixes()) {
    return;
  }
  const auto block_tokens = static_cast<std::size_t>(prefix_block_tokens_);
  const auto whole = static_cast<std::int64_t>(tokens.size() / block_tokens);
  for (; state.num_published < whole; ++state.num_published) {
    const auto i = static_cast<std::size_t>(state.num_published);
    Prefix* const prefix =
        index_.FindOrAdd(state.prefix, salt, tokens.subspan(i * block_tokens, block_tokens));
    for (std::size_t group = 0; group < pools_.size(); ++group) {
      const base::BlockId block = state.groups[group].blocks[i];
      // Another sequence may have been first with the same tokens: its block is the one that is found.
      if (block != base::kNoBlock && prefix->blocks[group] == base::kNoBlock) {
        prefix->blocks[group] = block;
        pools_[group].content[static_cast<std::size_t>(block.value)] = prefix;
      }
    }
    state.prefix = prefix->number;
    COMOE_DCHECK(std::any_of(prefix->blocks.begin(), prefix->blocks.end(),
                             [](base::BlockId block) { return block != base::kNoBlock; }),
                 "rows that were computed last are in blocks still");
  }
}

void KvBlockManager::Release(State& state) {
  for (std::size_t i = 0; i < state.groups.size(); ++i) {
    // Backwards: of what is kept, a prefix's end is overwritten before its beginning, without which it is of
    // no use.
    for (auto block = state.groups[i].blocks.rbegin(); block != state.groups[i].blocks.rend(); ++block) {
      if (*block != base::kNoBlock) {
        Drop(i, *block);
      }
    }
    if (state.groups[i].slot >= 0) {
      Drop(i, base::BlockId{state.groups[i].slot});
    }
  }
  state = State();
}

std::int64_t KvBlockManager::ForgetPrefixes() {
  std::int64_t forgotten = 0;
  for (std::size_t group = 0; group < pools_.size(); ++group) {
    Pool& pool = pools_[group];
    for (std::int32_t i = 0; i < pool.blocks.num_blocks(); ++i) {
      const base::BlockId block{i};
      if (pool.content[static_cast<std::size_t>(i)] == nullptr) {
        continue;
      }
      Forget(group, block);
      if (pool.blocks.holders(block) == 0) {
        pool.blocks.Forget(block);
        ++forgotten;
      }
    }
    pool.num_cached = 0;
  }
  return forgotten;
}

KvBlockManager::Counts KvBlockManager::counts() const {
  Counts counts;
  for (const Pool& pool : pools_) {
    counts.used += pool.blocks.num_blocks() - pool.blocks.num_free();
    counts.cached += pool.num_cached;
    counts.free += pool.blocks.num_free() - pool.num_cached;
  }
  return counts;
}

bool KvBlockManager::IsConsistent(absl::Span<const State* const> states) const {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const Pool& pool = pools_[i];
    const auto size = static_cast<std::size_t>(pool.blocks.num_blocks());
    std::vector<int> holders(size, 0);
    const auto count = [&holders](base::BlockId block) {
      if (block != base::kNoBlock) {
        ++holders[static_cast<std::size_t>(block.value)];
      }
    };
    for (const State* state : states) {
      if (!state->empty()) {
        std::for_each(state->groups[i].blocks.begin(), state->groups[i].blocks.end(), count);
        count(base::BlockId{state->groups[i].slot});
      }
    }
    std::vector<int> listed(size, 0);
    std::int64_t cached = 0;
    for (const base::BlockId block : pool.blocks.FreeList()) {
      ++listed[static_cast<std::size_t>(block.value)];
      cached += pool.content[static_cast<std::size_t>(block.value)] != nullptr ? 1 : 0;
    }
    bool consistent = cached == pool.num_cached;
    for (std::size_t block = 0; block < size; ++block) {
      const base::BlockId id{static_cast<std::int32_t>(block)};
      const Prefix* const content = pool.content[block];
      consistent = consistent && holders[block] == pool.blocks.holders(id) &&
                   listed[block] == (holders[block] == 0 ? 1 : 0) &&
                   (content == nullptr || content->blocks[i] == id);
    }
    if (!consistent) {
      return false;
    }
  }
  return true;
}

}  // namespace comoe::batching
