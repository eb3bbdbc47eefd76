// The one definition of how keys and values of one decoder layer lie in memory.
//
// Positions are kept in blocks of kKvBlockTokens. A block holds, for each KV head, its keys transposed
// [P, 16] (so that the scores of 16 positions are one vector) and its values [16, P], float32:
//
//   block b: | head 0: keys [P, 16] values [16, P] | head 1: ... |
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/base/ids.h"

namespace comoe::tensor {

inline constexpr std::int64_t kKvBlockTokens = 16;

struct KvLayout {
  std::int64_t kv_heads = 0;  // G
  std::int64_t head_dim = 0;  // P

  constexpr std::int64_t key_floats() const { return head_dim * kKvBlockTokens; }
  constexpr std::int64_t head_floats() const { return 2 * head_dim * kKvBlockTokens; }
  constexpr std::int64_t block_floats() const { return kv_heads * head_floats(); }
  constexpr std::size_t block_bytes() const {
    return static_cast<std::size_t>(block_floats()) * sizeof(float);
  }
};

// All blocks of one layer; block ids index it.
struct KvView {
  float* data = nullptr;
  std::int64_t num_blocks = 0;
  KvLayout layout;

  float* keys(base::BlockId block, std::int64_t head) const {
    return data + block.value * layout.block_floats() + head * layout.head_floats();
  }
  float* values(base::BlockId block, std::int64_t head) const {
    return keys(block, head) + layout.key_floats();
  }
};

}  // namespace comoe::tensor
