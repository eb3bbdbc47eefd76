#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/paged_attention_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <limits>

#include "engine/base/ids.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/paged_attention.h"
#include "engine/kernels/validate.h"
#include "engine/tensor/kv_layout.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;
static_assert(kBlock == 16, "the positions of a block are one group of vectors");

// Queries that go over the blocks of one KV head together, so that a block is read once for all of them.
constexpr int kTileQueries = 16;
constexpr std::int64_t kPackedDims = 256;  // 16 KiB of stack; larger heads are read where they lie
constexpr int kScoreQueries = kVecs == 1 ? 8 : kVecs == 2 ? 2 : 1;  // whose sums fit in the registers
constexpr int kValueQueries = kVecs <= 2 ? 4 / kVecs : 1;

constexpr std::int64_t kLineBytes = 64;

// Blocks whose scores are computed before one step of the softmax and one pass over their values.
constexpr int kChunkBlocks = 4;

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
  alignas(64) float sums[kBlock];                    // of the weights so far, position j in sum j % 16
  alignas(64) float weights[kChunkBlocks * kBlock];  // of the current chunk, its scores before
};

// weights[j] = q . key j of `B` blocks from number `block` on, over even and odd dimensions apart, for
// queries [first, first + N) of a tile. `packed` holds the tile's queries [P, kTileQueries], or is nullptr
// where P is too large for that.
template <int N, int B, bool kPacked, typename T>
HWY_INLINE void Scores(const Chunk<T>& chunk, int block, std::int64_t dim, const float* HWY_RESTRICT packed,
                       int first, Query* tile) {
  F32Vec even[B][N][kVecs];
  F32Vec odd[B][N][kVecs];
  const float* q[N];
  const T* HWY_RESTRICT keys[B];
  const T* ahead[B];
  COMOE_UNROLL
  for (int b = 0; b < B; ++b) {
    keys[b] = chunk.keys(block + b);
    ahead[b] = chunk.after_keys(block + b, B);
    COMOE_UNROLL
    for (int n = 0; n < N; ++n) {
      q[n] = tile[first + n].q;
      COMOE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        even[b][n][v] = hn::Zero(F32());
        odd[b][n][v] = hn::Zero(F32());
      }
    }
  }
  // Input p of query n. Of packed queries only one pointer moves, so that an address needs no index register.
  packed += kPacked ? first : 0;
  const auto input = [&](int n, std::int64_t p, int offset) {
    return kPacked ? packed[offset * kTileQueries + n] : q[n][p + offset];
  };
  std::int64_t p = 0;
  for (; p + 2 <= dim; p += 2) {
    COMOE_UNROLL
    for (int b = 0; b < B; ++b) {
      hwy::Prefetch(ahead[b] + p * kBlock);
      if constexpr (kBlock * sizeof(T) >= kLineBytes) {
        hwy::Prefetch(ahead[b] + (p + 1) * kBlock);
      }
      COMOE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const F32Vec key_even = LoadAsF32(F32(), keys[b] + p * kBlock + v * kLanes);
        const F32Vec key_odd = LoadAsF32(F32(), keys[b] + (p + 1) * kBlock + v * kLanes);
        COMOE_UNROLL
        for (int n = 0; n < N; ++n) {
          even[b][n][v] = hn::MulAdd(hn::Set(F32(), input(n, p, 0)), key_even, even[b][n][v]);
          odd[b][n][v] = hn::MulAdd(hn::Set(F32(), input(n, p, 1)), key_odd, odd[b][n][v]);
        }
      }
    }
    packed += kPacked ? 2 * kTileQueries : 0;
  }
  COMOE_UNROLL
  for (int b = 0; b < B; ++b) {
    COMOE_UNROLL
    for (int n = 0; n < N; ++n) {
      COMOE_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        if (p < dim) {
          const F32Vec key = LoadAsF32(F32(), keys[b] + p * kBlock + v * kLanes);
          even[b][n][v] = hn::MulAdd(hn::Set(F32(), input(n, p, 0)), key, even[b][n][v]);
        }
        StoreF32(hn::Add(even[b][n][v], odd[b][n][v]),
                 tile[first + n].weights + (block + b) * kBlock + v * kLanes);
      }
    }
  }
}

// Scores of B blocks for queries [begin, end) of a tile.
template <int B, int N, typename T>
HWY_INLINE void AllScores(const Chunk<T>& chunk, int block, std::int64_t dim, const float* packed, int begin,
                          int end, Query* tile) {
  for (; end - begin >= N; begin += N) {
    if (packed != nullptr) {
      Scores<N, B, true>(chunk, block, dim, packed, begin, tile);
    } else {
      Scores<N, B, false>(chunk, block, dim, nullptr, begin, tile);
    }
  }
  if constexpr (N > 1) {
    if (begin < end) {
      AllScores<B, N / 2>(chunk, block, dim, packed, begin, end, tile);
    }
  }
}

// Scores of the chunk for queries [begin, end). Few queries take two blocks at once, so that there are sums
// enough to hide the latency of each; otherwise a block meets only the queries that see it: positions rise
// with the row, so those are neighbours.
template <typename T>
void ChunkScores(const Chunk<T>& chunk, std::int64_t dim, const float* packed, int begin, int end,
                 Query* tile) {
  constexpr int kFew = kVecs == 1 ? 2 : 1;
  int block = 0;
  if (end - begin <= kFew) {
    for (; block + 2 <= chunk.blocks; block += 2) {
      AllScores<2, kFew>(chunk, block, dim, packed, begin, end, tile);
    }
  }
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
    AllScores<1, kScoreQueries>(chunk, block, dim, packed, first, last, tile);
  }
}

void Scale(float* values, std::int64_t n, float by) {
  ForLanes(n, [&](auto d, std::int64_t i)
                  HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, by)), d, values + i); });
}

// The scores of vector `at` of the chunk, those of positions that do not count replaced by -infinity.
HWY_INLINE F32Vec ScoresThatCount(const Query& query, float scale, int at) {
  const F32 d;
  const F32Vec scores = hn::Mul(LoadF32(query.weights + at), hn::Set(d, scale));
  if (at >= query.begin && at + kLanes <= query.end) {
    return scores;
  }
  const F32Vec lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const F32Vec slot = hn::Iota(d, static_cast<float>(at));
  const auto before = hn::Lt(slot, hn::Set(d, static_cast<float>(query.begin)));
  const auto behind = hn::Ge(slot, hn::Set(d, static_cast<float>(query.end)));
  return hn::IfThenElse(behind, lowest, hn::IfThenElse(before, lowest, scores));
}

// Turns the scores of the current chunk into weights and brings what came before to the new maximum.
// Positions that do not count get weight 0, whatever their score; a NaN score that counts makes the whole row
// NaN.
void UpdateSoftmax(float scale, std::int64_t dim, Query& query) {
  const F32 d;
  const int first = query.begin / static_cast<int>(kBlock) * static_cast<int>(kBlock);
  F32Vec best = hn::Set(d, query.maximum);
  for (int at = first; at < query.end; at += kLanes) {
    const F32Vec scores = ScoresThatCount(query, scale, at);
    StoreF32(scores, query.weights + at);
    best = hn::Max(best, scores);
  }
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, best));
  float keep = 1.0F;
  if (maximum != query.maximum) {
    keep = hn::GetLane(hn::Exp(d, hn::Set(d, query.maximum - maximum)));
    query.maximum = maximum;
    Scale(query.out, dim, keep);
  }
  for (int at = 0; at < kBlock; at += kLanes) {
    StoreF32(hn::Mul(LoadF32(query.sums + at), hn::Set(d, keep)), query.sums + at);
  }
  for (int at = first; at < query.end; at += kLanes) {
    // Exp(NaN) is 0 and Max may drop a NaN; once in a sum, it stays.
    const F32Vec scores = LoadF32(query.weights + at);
    const F32Vec weight =
        hn::IfThenElse(hn::IsNaN(scores), scores, hn::Exp(d, hn::Sub(scores, hn::Set(d, maximum))));
    StoreF32(weight, query.weights + at);
    float* sums = query.sums + at % static_cast<int>(kBlock);
    StoreF32(hn::Add(LoadF32(sums), weight), sums);
  }
}

// out += sum over positions j in [begin, end) of the chunk of weights[j] * value j, in order, for N queries
// that all see them and V registers of dimensions.
template <int N, int V, class D, typename T>
HWY_INLINE void AddValues(D d, const Chunk<T>& chunk, std::int64_t dim, std::int64_t at, int begin, int end,
                          Query* queries) {
  constexpr std::int64_t kStep = static_cast<std::int64_t>(hn::MaxLanes(D()));
  hn::Vec<D> sums[N][V];
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      sums[n][v] = hn::LoadU(d, queries[n].out + at + v * kStep);
    }
  }
  while (begin < end) {
    const int block = begin / static_cast<int>(kBlock);
    const int start = block * static_cast<int>(kBlock);
    const int stop = std::min(end, start + static_cast<int>(kBlock));
    const T* HWY_RESTRICT value = chunk.values(block) + (begin - start) * dim + at;
    const T* ahead = chunk.after_values(block) + (begin - start) * dim + at;
    COMOE_NO_UNROLL
    for (; begin < stop; ++begin) {
      COMOE_UNROLL
      for (int v = 0; v < V; ++v) {
        if (v * kStep * static_cast<std::int64_t>(sizeof(T)) % kLineBytes == 0) {
          hwy::Prefetch(ahead + v * kStep);
        }
        const auto part = LoadAsF32(d, value + v * kStep);
        COMOE_UNROLL
        for (int n = 0; n < N; ++n) {
          sums[n][v] = hn::MulAdd(hn::Set(d, queries[n].weights[begin]), part, sums[n][v]);
        }
      }
      value += dim;
      ahead += dim;
    }
  }
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      hn::StoreU(sums[n][v], d, queries[n].out + at + v * kStep);
    }
  }
}

template <int N, typename T>
HWY_INLINE void AddPositions(const Chunk<T>& chunk, std::int64_t dim, int begin, int end, Query* queries) {
  if (begin >= end) {
    return;
  }
  constexpr int kWide = N == 1 ? 8 : 4;
  std::int64_t at = 0;
  for (; at + kWide * kLanes <= dim; at += kWide * kLanes) {
    AddValues<N, kWide>(F32(), chunk, dim, at, begin, end, queries);
  }
  for (; at + kLanes <= dim; at += kLanes) {
    AddValues<N, 1>(F32(), chunk, dim, at, begin, end, queries);
  }
  for (; at < dim; ++at) {
    AddValues<N, 1>(One(), chunk, dim, at, begin, end, queries);
  }
}

// Adds the chunk's values to groups of N queries, then to smaller ones. The positions that all of a group see
// are added for all together, those before and behind for each alone: a value that does not count for a query
// may be anything and must not meet its weight 0.
template <int N = kValueQueries, typename T>
void AddAllValues(const Chunk<T>& chunk, std::int64_t dim, Query* queries, int count) {
  int n = 0;
  for (; n + N <= count; n += N) {
    Query* group = queries + n;
    const int begin = group[N - 1].begin;  // windows begin and end later with the row
    const int end = std::max(begin, group[0].end);
    for (int i = 0; N > 1 && i < N; ++i) {
      AddPositions<1>(chunk, dim, group[i].begin, std::min(begin, group[i].end), group + i);
    }
    AddPositions<N>(chunk, dim, begin, end, group);
    for (int i = 0; N > 1 && i < N; ++i) {
      AddPositions<1>(chunk, dim, std::max(end, group[i].begin), group[i].end, group + i);
    }
  }
  if constexpr (N > 1) {
    if (n < count) {
      AddAllValues<N / 2>(chunk, dim, queries + n, count - n);
    }
  }
}

// Blocks [first, first + blocks) of a sequence, of which `last` is the last one that is ever used.
template <typename T>
Chunk<T> MakeChunk(const AttentionArgs& args, const SequenceRows& seq, std::int64_t kv_head,
                   std::int64_t first, std::int64_t end, std::int64_t last) {
  Chunk<T> chunk;
  chunk.blocks = static_cast<int>(end - first);
  const auto block = [&seq](std::int64_t b) { return seq.blocks[static_cast<std::size_t>(b)]; };
  for (int i = 0; i < chunk.blocks; ++i) {
    chunk.pieces[i] = args.kv.keys<T>(block(first + i), kv_head);
    chunk.pieces[chunk.blocks + i] = args.kv.values<T>(block(first + i), kv_head);
  }
  for (int i = 0; i < 2; ++i) {
    chunk.pieces[2 * chunk.blocks + i] = args.kv.keys<T>(block(std::min(end + i, last)), kv_head);
  }
  return chunk;
}

// The positions of a chunk, `size` of them from `start` on, that count for each query. Positions rise with
// the row, so the queries that see any are neighbours: [begin, end) of the tile.
void FindPositions(std::int64_t start, std::int64_t size, Query* tile, int count, int& begin, int& end) {
  begin = 0;
  while (tile[begin].last < start) {
    ++begin;
  }
  for (end = begin; end < count && tile[end].first < start + size; ++end) {
    tile[end].begin = static_cast<int>(std::max<std::int64_t>(0, tile[end].first - start));
    tile[end].end = static_cast<int>(std::min(size, tile[end].last - start + 1));
  }
}

// `count` query heads of KV head `kv_head` from number `first` on, counting all of a sequence's rows one
// after the other.
template <typename T>
void AttendTile(const AttentionArgs& args, const SequenceRows& seq, std::int64_t kv_head, std::int64_t first,
                int count) {
  const std::int64_t dim = args.kv.layout.head_dim;
  const std::int64_t group = args.heads / args.kv.layout.kv_heads;
  Query queries[kTileQueries];
  for (int n = 0; n < count; ++n) {
    Query& query = queries[n];
    const std::int64_t row = (first + n) / group;
    const std::int64_t head = kv_head * group + (first + n) % group;
    query.q = args.queries.f32(seq.first_row + row) + head * dim;
    query.out = args.out.f32(seq.first_row + row) + head * dim;
    query.last = seq.start_position + row;
    query.first = args.window == 0 ? 0 : std::max<std::int64_t>(0, query.last - args.window + 1);
    query.maximum = -std::numeric_limits<float>::infinity();
    std::fill(query.sums, query.sums + kBlock, 0.0F);
    std::fill(query.out, query.out + dim, 0.0F);
  }
  alignas(64) float packed[kPackedDims * kTileQueries];
  for (std::int64_t p = 0; p < (dim <= kPackedDims ? dim : 0); ++p) {
    for (int n = 0; n < count; ++n) {
      packed[p * kTileQueries + n] = queries[n].q[p];
    }
  }
  const std::int64_t last_block = queries[count - 1].last / kBlock;
  // Chunks begin at multiples of their size, so that a row meets the same ones whatever rows are beside it.
  for (std::int64_t b = queries[0].first / kBlock; b <= last_block;) {
    const std::int64_t end_block = std::min((b / kChunkBlocks + 1) * kChunkBlocks, last_block + 1);
    const Chunk<T> chunk = MakeChunk<T>(args, seq, kv_head, b, end_block, last_block);
    int begin = 0;
    int end = 0;
    FindPositions(b * kBlock, chunk.blocks * kBlock, queries, count, begin, end);
    ChunkScores(chunk, dim, dim <= kPackedDims ? packed : nullptr, begin, end, queries);
    for (int n = begin; n < end; ++n) {
      UpdateSoftmax(args.scale, dim, queries[n]);
    }
    AddAllValues(chunk, dim, queries + begin, end - begin);
    b = end_block;
  }
  for (int n = 0; n < count; ++n) {
    Scale(queries[n].out, dim, 1.0F / Sum16(queries[n].sums));
  }
}

// The tiles of a sequence, for one KV head.
std::int64_t NumTiles(const AttentionArgs& args, const SequenceRows& seq) {
  const std::int64_t queries = seq.num_rows * (args.heads / args.kv.layout.kv_heads);
  return (queries + kTileQueries - 1) / kTileQueries;
}

// Tiles of all sequences and KV heads, every `step`-th from number `first` on.
template <typename T>
void AttendTiles(const AttentionArgs& args, std::int64_t first, std::int64_t step) {
  const std::int64_t group = args.heads / args.kv.layout.kv_heads;
  std::int64_t next = first;
  for (const SequenceRows& seq : args.sequences) {
    const std::int64_t tiles = NumTiles(args, seq);
    for (; next < tiles * args.kv.layout.kv_heads; next += step) {
      const std::int64_t query = next % tiles * kTileQueries;
      const std::int64_t count = std::min<std::int64_t>(kTileQueries, seq.num_rows * group - query);
      AttendTile<T>(args, seq, next / tiles, query, static_cast<int>(count));
    }
    next -= tiles * args.kv.layout.kv_heads;
  }
}

double EstimateAttentionNs(const AttentionArgs& args) {
  double positions = 0;
  for (const SequenceRows& seq : args.sequences) {
    double seen = static_cast<double>(seq.start_position) + 0.5 * static_cast<double>(seq.num_rows);
    if (args.window > 0) {
      seen = std::min(seen, static_cast<double>(args.window));
    }
    positions += seen * static_cast<double>(seq.num_rows);
  }
  const double flops = 4.0 * positions * static_cast<double>(args.heads * args.kv.layout.head_dim);
  return 2.0 * flops / kFlopsPerNs;  // the softmax costs as much again
}

}  // namespace

absl::Status AttentionCpu(const AttentionArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Attention", stream));
  const std::int64_t pieces = NumPieces(stream, EstimateAttentionNs(args));
  tensor::WithStoredType(args.kv.layout, [&](auto stored) {
    ForTasks(stream, pieces, [&](std::int64_t piece) { AttendTiles<decltype(stored)>(args, piece, pieces); });
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(AttentionCpu);
COMOE_KERNEL_FOR_TARGET(AttentionForTarget, attention, AttentionCpu)

}  // namespace comoe::kernels
#endif
