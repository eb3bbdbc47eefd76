#include "scheduler/batching/block_pool.h"

#include "engine/base/check.h"

namespace comoe::batching {

BlockPool::BlockPool(std::int32_t num_blocks)
    : num_blocks_(num_blocks), entries_(static_cast<std::size_t>(num_blocks) + 1) {
  entries_[end()].previous = entries_[end()].next = num_blocks;
  for (std::int32_t block = 0; block < num_blocks; ++block) {
    LinkAfter(static_cast<std::size_t>(block), static_cast<std::size_t>(entries_[end()].previous));
  }
}

std::size_t BlockPool::Index(base::BlockId block) const {
  COMOE_CHECK(block.value >= 0 && block.value < num_blocks_, "a block of the pool");
  return static_cast<std::size_t>(block.value);
}

void BlockPool::Unlink(std::size_t index) {
  const Entry& entry = entries_[index];
  entries_[static_cast<std::size_t>(entry.previous)].next = entry.next;
  entries_[static_cast<std::size_t>(entry.next)].previous = entry.previous;
  --num_free_;
}

void BlockPool::LinkAfter(std::size_t index, std::size_t previous) {
  Entry& entry = entries_[index];
  entry.previous = static_cast<std::int32_t>(previous);
  entry.next = entries_[previous].next;
  entries_[previous].next = static_cast<std::int32_t>(index);
  entries_[static_cast<std::size_t>(entry.next)].previous = static_cast<std::int32_t>(index);
  ++num_free_;
}

base::BlockId BlockPool::Take() {
  COMOE_CHECK(num_free_ > 0, "a block is taken only where one is free");
  const std::int32_t block = entries_[end()].next;
  Unlink(static_cast<std::size_t>(block));
  entries_[static_cast<std::size_t>(block)].holders = 1;
  return base::BlockId{block};
}

void BlockPool::Share(base::BlockId block) {
  Entry& entry = entries_[Index(block)];
  if (entry.holders++ == 0) {
    Unlink(Index(block));
  }
}

void BlockPool::Drop(base::BlockId block, bool keep_content) {
  Entry& entry = entries_[Index(block)];
  COMOE_CHECK(entry.holders > 0, "a block is given back once");
  if (--entry.holders == 0) {
    LinkAfter(Index(block), keep_content ? static_cast<std::size_t>(entries_[end()].previous) : end());
  }
}

void BlockPool::Forget(base::BlockId block) {
  COMOE_CHECK(holders(block) == 0, "only free blocks are on the list");
  Unlink(Index(block));
  LinkAfter(Index(block), end());
}

std::vector<base::BlockId> BlockPool::FreeList() const {
  std::vector<base::BlockId> blocks;
  for (std::int32_t block = entries_[end()].next; block != num_blocks_;
       block = entries_[static_cast<std::size_t>(block)].next) {
    blocks.push_back(base::BlockId{block});
  }
  return blocks;
}

}  // namespace comoe::batching
