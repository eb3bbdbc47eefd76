// The blocks of one cache group: who holds them, and in which order free ones are used again. Ids only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace comoe::batching {

// A block is free (no holder) or held by one or several sequences. Free blocks wait in a list: a block whose
// content may be wanted again is put at its back, one that is of no further use at its front, and blocks are
// taken from the front, so that what was used longest ago is overwritten first. All operations are O(1).
// Thread-compatible.
class BlockPool {
 public:
  explicit BlockPool(std::int32_t num_blocks);

  std::int32_t num_blocks() const { return num_blocks_; }
  std::int32_t num_free() const { return num_free_; }
  std::int32_t holders(base::BlockId block) const { return entries_[Index(block)].holders; }

  // The free block that was used longest ago; it has one holder then. One is free.
  base::BlockId Take();
  // One more holder; a free block is not free any more.
  void Share(base::BlockId block);
  // One holder less. With none left it is free: at the back of the list if its content is to be kept.
  void Drop(base::BlockId block, bool keep_content);
  // A free block's content is of no use any more: it moves to the front.
  void Forget(base::BlockId block);

  // Free blocks in the order in which they will be taken: for tests and invariants.
  std::vector<base::BlockId> FreeList() const;

 private:
  struct Entry {
    std::int32_t holders = 0;
    std::int32_t previous = 0;  // on the free list
    std::int32_t next = 0;
  };

  std::size_t Index(base::BlockId block) const;
  void Unlink(std::size_t index);
  void LinkAfter(std::size_t index, std::size_t previous);
  std::size_t end() const { return static_cast<std::size_t>(num_blocks_); }  // the list's two ends meet here

  std::int32_t num_blocks_;
  std::int32_t num_free_ = 0;
  std::vector<Entry> entries_;  // [num_blocks + 1]: the last one is the list's ends
};

}  // namespace comoe::batching
