// What attention over floats and over integers share: the tile of queries that goes over the blocks of a KV
// head together, and the chunk of blocks that it looks at between two steps of the softmax.
#if defined(COMOE_ENGINE_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COMOE_ENGINE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef COMOE_ENGINE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define COMOE_ENGINE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <cstdint>

#include "engine/kernels/cpu/simd-inl.h"
#include "engine/tensor/kv_layout.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;
static_assert(kBlock == 16, "the positions of a block are one group of vectors");

// Queries that go over the blocks of one KV head together, so that a block is read once for all of them.
constexpr int kTileQueries = 16;
constexpr std::int64_t kLineBytes = 64;

// Blocks whose scores are computed before one step of the softmax and one pass over their values.
constexpr int kChunkBlocks = 4;
constexpr std::int64_t kChunkSize = kChunkBlocks * kBlock;

// Where the keys and values of a chunk lie, in the order of their use: keys of its blocks, values of its
// blocks, and what comes after. Each is asked for while the two before it are worked on (keys of many
// queries: the one before): the hardware's own prefetchers stop at the end of a page, and a block's keys may
// be a page. T, here and below, is the stored type.
template <typename T>
struct Chunk {
  int blocks = 0;
  const T* pieces[2 * kChunkBlocks + 2];

  const T* keys(int block) const { return pieces[block]; }
  const T* values(int block) const { return pieces[blocks + block]; }
  const T* after_keys(int block, int step) const { return pieces[block + step]; }
  const T* after_values(int block) const { return pieces[blocks + block + 2]; }
};

// The state of one query head of one row.
struct Query {
  const float* q = nullptr;  // [P]
  float* out = nullptr;      // [P], the weighted sum of values so far
  std::int64_t first = 0;    // the positions that count: [first, last]
  std::int64_t last = 0;
  float maximum = 0;  // of the scores so far
  int begin = 0;      // positions of the current chunk that count: [begin, end)
  int end = 0;
  alignas(64) float sums[kBlock];         // of the weights so far, position j in sum j % 16
  alignas(64) float weights[kChunkSize];  // of the current chunk, its scores before
};

// Calls fn(block, first, last) for each block of the chunk from number `block` on that any of queries
// [begin, end) sees, and those of them that do: positions rise with the row, so they are neighbours.
template <typename T, class Fn>
HWY_INLINE void ForBlocks(const Chunk<T>& chunk, int block, int begin, int end, const Query* tile,
                          const Fn& fn) {
  for (; block < chunk.blocks; ++block) {
    const int start = block * static_cast<int>(kBlock);
    int first = begin;
    while (first < end && tile[first].end <= start) {
      ++first;
    }
    int last = first;
    while (last < end && tile[last].begin < start + kBlock) {
      ++last;
    }
    fn(block, first, last);
  }
}

}  // namespace
}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
