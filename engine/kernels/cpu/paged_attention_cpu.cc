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

// The state of one query head of one row.
struct Query {
  const float* q = nullptr;  // [P]
  float* out = nullptr;      // [P], the weighted sum of values so far
  std::int64_t first = 0;    // the positions that count: [first, last]
  std::int64_t last = 0;
  float maximum = 0;  // of the scores so far
  int begin = 0;      // slots of the current block that count: [begin, end)
  int end = 0;
  alignas(64) float sums[kBlock];     // of the weights so far, position j in sum j % 16
  alignas(64) float weights[kBlock];  // of the current block, its scores before
};

// weights[j] = q . key j of the block, over even and odd dimensions apart, for queries [first, first + N) of
// a tile. `packed` holds the tile's queries [P, kTileQueries], or is nullptr where P is too large for that.
template <int N, bool kPacked>
HWY_INLINE void Scores(const float* HWY_RESTRICT keys, std::int64_t dim, const float* HWY_RESTRICT packed,
                       int first, Query* tile) {
  F32Vec even[N][kVecs];
  F32Vec odd[N][kVecs];
  const float* q[N];
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    q[n] = tile[first + n].q;
    COMOE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      even[n][v] = hn::Zero(F32());
      odd[n][v] = hn::Zero(F32());
    }
  }
  // Input p of query n. Of packed queries only one pointer moves, so that an address needs no index register.
  packed += kPacked ? first : 0;
  const auto input = [&](int n, std::int64_t p, int ahead) {
    return kPacked ? packed[ahead * kTileQueries + n] : q[n][p + ahead];
  };
  std::int64_t p = 0;
  for (; p + 2 <= dim; p += 2) {
    COMOE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const F32Vec key_even = LoadF32(keys + v * kLanes);
      const F32Vec key_odd = LoadF32(keys + kBlock + v * kLanes);
      COMOE_UNROLL
      for (int n = 0; n < N; ++n) {
        even[n][v] = hn::MulAdd(hn::Set(F32(), input(n, p, 0)), key_even, even[n][v]);
        odd[n][v] = hn::MulAdd(hn::Set(F32(), input(n, p, 1)), key_odd, odd[n][v]);
      }
    }
    keys += 2 * kBlock;
    packed += kPacked ? 2 * kTileQueries : 0;
  }
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    COMOE_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      if (p < dim) {
        even[n][v] = hn::MulAdd(hn::Set(F32(), input(n, p, 0)), LoadF32(keys + v * kLanes), even[n][v]);
      }
      StoreF32(hn::Add(even[n][v], odd[n][v]), tile[first + n].weights + v * kLanes);
    }
  }
}

// Scores of queries [begin, end) of a tile.
template <int N = kScoreQueries>
HWY_INLINE void AllScores(const float* keys, std::int64_t dim, const float* packed, int begin, int end,
                          Query* tile) {
  for (; end - begin >= N; begin += N) {
    if (packed != nullptr) {
      Scores<N, true>(keys, dim, packed, begin, tile);
    } else {
      Scores<N, false>(keys, dim, nullptr, begin, tile);
    }
  }
  if constexpr (N > 1) {
    if (begin < end) {
      AllScores<N / 2>(keys, dim, packed, begin, end, tile);
    }
  }
}

void Scale(float* values, std::int64_t n, float by) {
  ForLanes(n, [&](auto d, std::int64_t i)
                  HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, by)), d, values + i); });
}

// Turns the scores of the current block into weights and brings what came before to the new maximum. Slots
// that do not count get weight 0, whatever their score; a NaN score that counts makes the whole row NaN.
void UpdateSoftmax(float scale, std::int64_t dim, Query& query) {
  const F32 d;
  F32Vec scores[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    scores[v] = hn::Mul(LoadF32(query.weights + v * kLanes), hn::Set(d, scale));
  }
  if (query.begin > 0 || query.end < kBlock) {
    const F32Vec lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (int v = 0; v < kVecs; ++v) {
      const F32Vec slot = hn::Iota(d, static_cast<float>(v * kLanes));
      const auto before = hn::Lt(slot, hn::Set(d, static_cast<float>(query.begin)));
      const auto behind = hn::Ge(slot, hn::Set(d, static_cast<float>(query.end)));
      scores[v] = hn::IfThenElse(behind, lowest, hn::IfThenElse(before, lowest, scores[v]));
    }
  }
  F32Vec best = hn::Set(d, query.maximum);
  for (int v = 0; v < kVecs; ++v) {
    best = hn::Max(best, scores[v]);
  }
  const float maximum = hn::GetLane(hn::MaxOfLanes(d, best));
  float keep = 1.0F;
  if (maximum != query.maximum) {
    keep = hn::GetLane(hn::Exp(d, hn::Set(d, query.maximum - maximum)));
    query.maximum = maximum;
    Scale(query.out, dim, keep);
  }
  for (int v = 0; v < kVecs; ++v) {
    // Exp(NaN) is 0 and Max may drop a NaN; once in a sum, it stays.
    const F32Vec weight =
        hn::IfThenElse(hn::IsNaN(scores[v]), scores[v], hn::Exp(d, hn::Sub(scores[v], hn::Set(d, maximum))));
    const F32Vec sum = hn::MulAdd(LoadF32(query.sums + v * kLanes), hn::Set(d, keep), weight);
    StoreF32(weight, query.weights + v * kLanes);
    StoreF32(sum, query.sums + v * kLanes);
  }
}

// out += sum over slots j in [begin, end) of weights[j] * value j, in order, for N queries with the same
// slots and V registers of dimensions.
template <int N, int V, class D>
HWY_INLINE void AddValues(D d, const float* HWY_RESTRICT values, std::int64_t dim, std::int64_t at, int begin,
                          int end, Query* queries) {
  constexpr std::int64_t kStep = static_cast<std::int64_t>(hn::MaxLanes(D()));
  hn::Vec<D> sums[N][V];
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      sums[n][v] = hn::LoadU(d, queries[n].out + at + v * kStep);
    }
  }
  COMOE_NO_UNROLL
  for (int j = begin; j < end; ++j) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto value = hn::LoadU(d, values + j * dim + at + v * kStep);
      COMOE_UNROLL
      for (int n = 0; n < N; ++n) {
        sums[n][v] = hn::MulAdd(hn::Set(d, queries[n].weights[j]), value, sums[n][v]);
      }
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

template <int N>
HWY_INLINE void AddSlots(const float* values, std::int64_t dim, int begin, int end, Query* queries) {
  if (begin >= end) {
    return;
  }
  constexpr int kWide = N == 1 ? 8 : 4;
  std::int64_t at = 0;
  for (; at + kWide * kLanes <= dim; at += kWide * kLanes) {
    AddValues<N, kWide>(F32(), values, dim, at, begin, end, queries);
  }
  for (; at + kLanes <= dim; at += kLanes) {
    AddValues<N, 1>(F32(), values, dim, at, begin, end, queries);
  }
  for (; at < dim; ++at) {
    AddValues<N, 1>(One(), values, dim, at, begin, end, queries);
  }
}

// The slots that all of a group of queries see are added for all together, those before and behind for each
// alone: a value that does not count for a query may be anything and must not meet its weight 0.
void AddAllValues(const float* values, std::int64_t dim, Query* queries, int count) {
  int n = 0;
  for (; kValueQueries > 1 && n + kValueQueries <= count; n += kValueQueries) {
    Query* group = queries + n;
    const int begin = group[kValueQueries - 1].begin;  // windows begin and end later with the row
    const int end = std::max(begin, group[0].end);
    for (int i = 0; i < kValueQueries; ++i) {
      AddSlots<1>(values, dim, group[i].begin, std::min(begin, group[i].end), group + i);
    }
    AddSlots<kValueQueries>(values, dim, begin, end, group);
    for (int i = 0; i < kValueQueries; ++i) {
      AddSlots<1>(values, dim, std::max(end, group[i].begin), group[i].end, group + i);
    }
  }
  for (; n < count; ++n) {
    AddSlots<1>(values, dim, queries[n].begin, queries[n].end, queries + n);
  }
}

// `count` query heads of KV head `kv_head` from number `first` on, counting all of a sequence's rows one
// after the other.
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
  for (std::int64_t b = queries[0].first / kBlock; b <= queries[count - 1].last / kBlock; ++b) {
    const std::int64_t start = b * kBlock;
    // Positions rise with the row, so the queries that see this block are neighbours.
    int begin = 0;
    while (queries[begin].last < start) {
      ++begin;
    }
    int end = begin;
    for (; end < count && queries[end].first < start + kBlock; ++end) {
      queries[end].begin = static_cast<int>(std::max<std::int64_t>(0, queries[end].first - start));
      queries[end].end = static_cast<int>(std::min(kBlock, queries[end].last - start + 1));
    }
    const base::BlockId block = seq.blocks[static_cast<std::size_t>(b)];
    AllScores(args.kv.keys(block, kv_head), dim, dim <= kPackedDims ? packed : nullptr, begin, end, queries);
    for (int n = begin; n < end; ++n) {
      UpdateSoftmax(args.scale, dim, queries[n]);
    }
    AddAllValues(args.kv.values(block, kv_head), dim, queries + begin, end - begin);
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
void AttendTiles(const AttentionArgs& args, std::int64_t first, std::int64_t step) {
  const std::int64_t group = args.heads / args.kv.layout.kv_heads;
  std::int64_t next = first;
  for (const SequenceRows& seq : args.sequences) {
    const std::int64_t tiles = NumTiles(args, seq);
    for (; next < tiles * args.kv.layout.kv_heads; next += step) {
      const std::int64_t query = next % tiles * kTileQueries;
      const std::int64_t count = std::min<std::int64_t>(kTileQueries, seq.num_rows * group - query);
      AttendTile(args, seq, next / tiles, query, static_cast<int>(count));
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
  ForTasks(stream, pieces, [&](std::int64_t piece) { AttendTiles(args, piece, pieces); });
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
