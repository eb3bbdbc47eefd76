// Attention over keys and values that are signed bytes with scales (DType::kQ8).
//
// Widening bytes to floats costs as much as using them, so they are used as integers: a query, and the
// weights of a chunk of positions times the values' scales, become 16-bit integers with a scale of their own,
// and one instruction multiplies and adds 32 pairs. Sums of integers are exact, so their order does not show,
// and a place that does not count is a plain 0, whatever the byte is.
//
// What that rounds away: 2^-16 of the largest query number of a group of dimensions, or of the largest weight
// of a chunk, where the bytes themselves are off by up to 2^-8 of the largest of their group.
#if defined(COMOE_ENGINE_KERNELS_CPU_ATTENTION_INTEGERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COMOE_ENGINE_KERNELS_CPU_ATTENTION_INTEGERS_INL_H_
#undef COMOE_ENGINE_KERNELS_CPU_ATTENTION_INTEGERS_INL_H_
#else
#define COMOE_ENGINE_KERNELS_CPU_ATTENTION_INTEGERS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/kernels/cpu/attention_tile-inl.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/tensor/kv_layout.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

using I32 = hn::Rebind<std::int32_t, F32>;
using I32Vec = hn::Vec<I32>;

constexpr std::int64_t kGroup = tensor::kKvGroupDims;
constexpr std::int64_t kPairRow = 2 * kBlock;  // bytes: a pair of numbers of 16 positions, or dimensions
constexpr std::int64_t kPairLanes = 2 * kLanes;
// 32 products with bytes stay below 2^31 many times over, and so do those of a chunk.
constexpr float kMaxInteger = 32767.0F;
constexpr float kSmallest = 1e-30F;  // less counts as 0, so that 32767 / it is finite

// Dimensions of queries that are integers at a time: all, but of the largest heads.
constexpr std::int64_t kSlabDims = 256;
constexpr int kIntegerQueries = kVecs <= 2 ? 8 / kVecs : 1;  // of keys: whose sums fit in the registers
// Of values: queries, and registers of dimensions.
constexpr int kIntegerRows = kVecs == 1 ? 4 : kVecs <= 4 ? 2 : 1;
constexpr int kIntegerVecs = 4;
constexpr int kIntegerGroups = std::max<int>(1, kIntegerVecs* kLanes / kGroup);

// kLanes pairs of integers, and their pairwise products added to sums. `pair`: two 16-bit integers, the first
// in the low half.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
using I16 = hn::Repartition<std::int16_t, I32>;
using Pairs = hn::Vec<I16>;
HWY_INLINE Pairs LoadPairs(const std::int8_t* from) {
  return hn::PromoteTo(I16(), hn::LoadU(hn::Rebind<std::int8_t, I16>(), from));
}
HWY_INLINE Pairs SetPair(std::int32_t pair) { return hn::BitCast(I16(), hn::Set(I32(), pair)); }
HWY_INLINE I32Vec AddProducts(Pairs a, Pairs b, I32Vec sums) {
  I32Vec none = hn::Zero(I32());
  return hn::ReorderWidenMulAccumulate(I32(), a, b, sums, none);
}
#else
struct Pairs {
  I32Vec low, high;
};
HWY_INLINE Pairs LoadPairs(const std::int8_t* from) {
  const hn::Rebind<std::int16_t, I32> d;
  const auto both = hn::LoadU(d, reinterpret_cast<const std::int16_t*>(from));
  return {hn::PromoteTo(I32(), hn::ShiftRight<8>(hn::ShiftLeft<8>(both))),
          hn::PromoteTo(I32(), hn::ShiftRight<8>(both))};
}
HWY_INLINE Pairs SetPair(std::int32_t pair) {
  return {hn::Set(I32(), static_cast<std::int16_t>(pair)), hn::Set(I32(), pair >> 16)};
}
HWY_INLINE I32Vec AddProducts(Pairs a, Pairs b, I32Vec sums) {
  return hn::Add(sums, hn::Add(hn::Mul(a.low, b.low), hn::Mul(a.high, b.high)));
}
#endif

HWY_INLINE Pairs LoadPair(const std::int16_t* pair) {
  std::int32_t bits = 0;
  std::memcpy(&bits, pair, sizeof(bits));
  return SetPair(bits);
}

// Magnitudes are ordered as their bits are, NaN last.
HWY_INLINE I32Vec MaxMagnitude(I32Vec largest, F32Vec numbers) {
  return hn::Max(largest, hn::BitCast(I32(), hn::Abs(numbers)));
}

// Turns n floats, a multiple of kLanes, into integers and returns their scale. It is NaN when one of the
// floats is not finite.
HWY_INLINE float ToIntegers(const float* from, int n, I32Vec magnitudes, std::int16_t* to) {
  const hn::Rebind<std::int16_t, I32> d16;
  const float largest = hn::GetLane(hn::BitCast(F32(), hn::MaxOfLanes(I32(), magnitudes)));
  const bool finite = largest <= std::numeric_limits<float>::max();
  const bool some = finite && largest >= kSmallest;
  const F32Vec inverse = hn::Set(F32(), some ? kMaxInteger / largest : 0.0F);
  for (int i = 0; i < n; i += kLanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(LoadF32(from + i), inverse))), d16, to + i);
  }
  return some ? largest / kMaxInteger : finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
}

// The scales of a group of dimensions of 16 positions, behind the bytes of a piece of `dim` dimensions.
HWY_INLINE const float* ScalesOf(const std::int8_t* piece, std::int64_t dim, std::int64_t group) {
  return reinterpret_cast<const float*>(piece + (dim + 1) / 2 * kPairRow) + group * kBlock;
}

// Queries of a tile as integers: dimensions [begin, end).
struct IntegerQueries {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int16_t pairs[kSlabDims / 2][kTileQueries][2];
  float scales[kSlabDims / kGroup][kTileQueries];
};

void MakeIntegers(const Query* tile, int count, std::int64_t begin, std::int64_t dim, IntegerQueries* to) {
  to->begin = begin;
  to->end = std::min(dim, begin + kSlabDims);
  for (int n = 0; n < count; ++n) {
    for (std::int64_t first = begin; first < to->end; first += kGroup) {
      alignas(64) float numbers[kGroup] = {};
      std::copy(tile[n].q + first, tile[n].q + std::min(to->end, first + kGroup), numbers);
      I32Vec magnitudes = hn::Zero(I32());
      for (std::int64_t i = 0; i < kGroup; i += kLanes) {
        magnitudes = MaxMagnitude(magnitudes, LoadF32(numbers + i));
      }
      alignas(64) std::int16_t integers[kGroup];
      to->scales[(first - begin) / kGroup][n] = ToIntegers(numbers, kGroup, magnitudes, integers);
      for (std::int64_t i = 0; i < kGroup / 2; ++i) {
        std::copy(integers + 2 * i, integers + 2 * i + 2, to->pairs[(first - begin) / 2 + i][n]);
      }
    }
  }
}

// weights[j] = q . key j of B blocks from number `block` on, or what these dimensions add to it, for queries
// [first, first + N).
template <int N, int B>
HWY_INLINE void BlockScores(const Chunk<std::int8_t>& chunk, int block, std::int64_t dim,
                            const IntegerQueries& queries, int first, Query* tile) {
  const std::int16_t* HWY_RESTRICT q = queries.pairs[0][first];
  const std::int8_t* HWY_RESTRICT keys[B];
  const std::int8_t* ahead[B];
  COMOE_UNROLL
  for (int b = 0; b < B; ++b) {
    keys[b] = chunk.keys(block + b) + queries.begin / 2 * kPairRow;
    ahead[b] = chunk.after_keys(block + b, 2) + queries.begin / 2 * kPairRow;
  }
  for (std::int64_t at = queries.begin; at < queries.end; at += kGroup) {
    I32Vec sums[B][N][kVecs];
    COMOE_UNROLL
    for (int b = 0; b < B; ++b) {
      hwy::Prefetch(ScalesOf(chunk.after_keys(block + b, 2), dim, at / kGroup));
      COMOE_UNROLL
      for (int n = 0; n < N; ++n) {
        COMOE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          sums[b][n][v] = hn::Zero(I32());
        }
      }
    }
    const auto add_row = [&](std::int64_t r) HWY_ATTR {
      COMOE_UNROLL
      for (int b = 0; b < B; ++b) {
        if (r % 2 == 0) {
          hwy::Prefetch(ahead[b] + r * kPairRow);
        }
        COMOE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const Pairs key = LoadPairs(keys[b] + r * kPairRow + v * kPairLanes);
          COMOE_UNROLL
          for (int n = 0; n < N; ++n) {
            sums[b][n][v] = AddProducts(key, LoadPair(q + 2 * (r * kTileQueries + n)), sums[b][n][v]);
          }
        }
      }
    };
    if (queries.end - at >= kGroup) {
      COMOE_UNROLL
      for (std::int64_t r = 0; r < kGroup / 2; ++r) {
        add_row(r);
      }
    } else {
      COMOE_NO_UNROLL
      for (std::int64_t r = 0; 2 * r < queries.end - at; ++r) {
        add_row(r);
      }
    }
    q += kGroup * kTileQueries;
    COMOE_UNROLL
    for (int b = 0; b < B; ++b) {
      keys[b] += kGroup / 2 * kPairRow;
      ahead[b] += kGroup / 2 * kPairRow;
    }
    const float* query_scales = queries.scales[(at - queries.begin) / kGroup] + first;
    COMOE_UNROLL
    for (int b = 0; b < B; ++b) {
      const float* scales = ScalesOf(chunk.keys(block + b), dim, at / kGroup);
      COMOE_UNROLL
      for (int n = 0; n < N; ++n) {
        COMOE_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          float* to = tile[first + n].weights + (block + b) * kBlock + v * kLanes;
          const F32Vec scale = hn::Mul(LoadF32(scales + v * kLanes), hn::Set(F32(), query_scales[n]));
          const F32Vec sum = hn::ConvertTo(F32(), sums[b][n][v]);
          StoreF32(at == 0 ? hn::Mul(sum, scale) : hn::MulAdd(sum, scale, LoadF32(to)), to);
        }
      }
    }
  }
}

template <int N, int B>
HWY_INLINE void AllBlockScores(const Chunk<std::int8_t>& chunk, int block, std::int64_t dim,
                               const IntegerQueries& queries, int begin, int end, Query* tile) {
  for (; end - begin >= N; begin += N) {
    BlockScores<N, B>(chunk, block, dim, queries, begin, tile);
  }
  if constexpr (N > 1) {
    if (begin < end) {
      AllBlockScores<N / 2, B>(chunk, block, dim, queries, begin, end, tile);
    }
  }
}

// Scores of the chunk for queries [begin, end) of `count`. `queries` holds those of the tile when all
// dimensions fit in it; otherwise it is made here, a slab after the other.
void IntegerScores(const Chunk<std::int8_t>& chunk, std::int64_t dim, IntegerQueries& queries, int begin,
                   int end, int count, Query* tile) {
  for (std::int64_t slab = 0; slab < dim; slab += kSlabDims) {
    if (dim > kSlabDims) {
      MakeIntegers(tile, count, slab, dim, &queries);
    }
    // As with floats, few queries take two blocks at once.
    constexpr int kFew = std::max(1, kIntegerQueries / 4);
    int block = 0;
    if (end - begin <= kFew) {
      for (; block + 2 <= chunk.blocks; block += 2) {
        AllBlockScores<kFew, 2>(chunk, block, dim, queries, begin, end, tile);
      }
    }
    ForBlocks(chunk, block, begin, end, tile, [&](int b, int first, int last) HWY_ATTR {
      AllBlockScores<kIntegerQueries, 1>(chunk, b, dim, queries, first, last, tile);
    });
  }
}

// Weights of a chunk times the values' scales of some groups of dimensions, as integers.
struct IntegerWeights {
  float scales[kIntegerGroups];
  alignas(64) std::int16_t integers[kIntegerGroups][kChunkSize];
};

// For positions [begin, end), a whole number of pairs, and group `group`. 0 where a position does not count
// for the query.
HWY_INLINE float WeightsOfGroup(const Chunk<std::int8_t>& chunk, std::int64_t dim, std::int64_t group,
                                int begin, int end, const Query& query, std::int16_t* to) {
  const F32 d;
  alignas(64) float products[kChunkSize];
  I32Vec magnitudes = hn::Zero(I32());
  const auto product = [&](int at) HWY_ATTR {
    const float* scales = ScalesOf(chunk.values(at / static_cast<int>(kBlock)), dim, group);
    return hn::Mul(LoadF32(query.weights + at), LoadF32(scales + at % static_cast<int>(kBlock)));
  };
  if (query.begin == 0 && query.end == kChunkSize) {
    COMOE_UNROLL
    for (int at = 0; at < kChunkSize; at += kLanes) {
      const F32Vec some = product(at);
      StoreF32(some, products + at);
      magnitudes = MaxMagnitude(magnitudes, some);
    }
    return ToIntegers(products, kChunkSize, magnitudes, to);
  }
  const int first = begin / kLanes * kLanes;
  int at = first;
  for (; at < end; at += kLanes) {
    const F32Vec slot = hn::Iota(d, static_cast<float>(at));
    const auto counts = hn::And(hn::Ge(slot, hn::Set(d, static_cast<float>(query.begin))),
                                hn::Lt(slot, hn::Set(d, static_cast<float>(query.end))));
    const F32Vec some = hn::IfThenElseZero(counts, product(at));
    StoreF32(some, products + at);
    magnitudes = MaxMagnitude(magnitudes, some);
  }
  return ToIntegers(products + first, at - first, magnitudes, to + first);
}

// out += the chunk's weights times its values at positions [begin, end), a whole number of pairs, for N
// queries and V registers of dimensions from `at` on. Only the first `lanes` of the last register exist.
template <int N, int V>
HWY_INLINE void AddIntegers(const Chunk<std::int8_t>& chunk, std::int64_t dim, std::int64_t at, int lanes,
                            int begin, int end, const IntegerWeights* weights, Query* queries) {
  const std::int64_t row_bytes = (dim + 1) / 2 * 4;
  const std::int64_t group = at / kGroup % kIntegerGroups;
  I32Vec sums[N][V];
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      sums[n][v] = hn::Zero(I32());
    }
  }
  while (begin < end) {
    const int block = begin / static_cast<int>(kBlock);
    const int start = block * static_cast<int>(kBlock);
    const int stop = std::min(end, start + static_cast<int>(kBlock));
    const std::int64_t offset = (begin - start) / 2 * row_bytes + at * 2;
    const std::int8_t* values = chunk.values(block) + offset;
    const std::int8_t* ahead = chunk.after_values(block) + offset;
    for (int g = 0; g < std::max<int>(1, V * kLanes / kGroup); ++g) {
      hwy::Prefetch(ScalesOf(chunk.after_values(block), dim, at / kGroup + g));
    }
    COMOE_NO_UNROLL
    for (; begin < stop; begin += 2) {
      COMOE_UNROLL
      for (int v = 0; v < V; ++v) {
        if (v * kPairLanes % kLineBytes == 0) {
          hwy::Prefetch(ahead + v * kPairLanes);
        }
        const Pairs value = LoadPairs(values + v * kPairLanes);
        COMOE_UNROLL
        for (int n = 0; n < N; ++n) {
          const std::int16_t* weight = weights[n].integers[group + v * kLanes / kGroup] + begin;
          sums[n][v] = AddProducts(value, LoadPair(weight), sums[n][v]);
        }
      }
      values += row_bytes;
      ahead += row_bytes;
    }
  }
  COMOE_UNROLL
  for (int n = 0; n < N; ++n) {
    COMOE_UNROLL
    for (int v = 0; v < V; ++v) {
      float* out = queries[n].out + at + v * kLanes;
      const F32Vec scale = hn::Set(F32(), weights[n].scales[group + v * kLanes / kGroup]);
      const F32Vec sum = hn::ConvertTo(F32(), sums[n][v]);
      if (lanes == kLanes) {
        StoreF32(hn::MulAdd(sum, scale, LoadF32(out)), out);
        continue;
      }
      float some[kLanes] = {};
      std::copy(out, out + lanes, some);
      StoreF32(hn::MulAdd(sum, scale, LoadF32(some)), some);
      std::copy(some, some + lanes, out);
    }
  }
}

// The chunk's values for N queries, whose positions are those of all of them.
template <int N>
HWY_INLINE void AddIntegersOfQueries(const Chunk<std::int8_t>& chunk, std::int64_t dim, Query* queries) {
  const int begin = queries[0].begin / 2 * 2;  // windows begin and end later with the row
  const int end = (queries[N - 1].end + 1) / 2 * 2;
  IntegerWeights weights[N];
  const std::int64_t groups = (dim + kGroup - 1) / kGroup;
  for (std::int64_t at = 0; at < dim;) {
    if (at % (kIntegerGroups * kGroup) == 0) {
      for (std::int64_t g = 0; g < std::min<std::int64_t>(kIntegerGroups, groups - at / kGroup); ++g) {
        for (int n = 0; n < N; ++n) {
          weights[n].scales[g] =
              WeightsOfGroup(chunk, dim, at / kGroup + g, begin, end, queries[n], weights[n].integers[g]);
        }
      }
    }
    if (at + kIntegerVecs * kLanes <= dim) {
      AddIntegers<N, kIntegerVecs>(chunk, dim, at, kLanes, begin, end, weights, queries);
      at += kIntegerVecs * kLanes;
    } else {
      const int lanes = static_cast<int>(std::min<std::int64_t>(kLanes, dim - at));
      AddIntegers<N, 1>(chunk, dim, at, lanes, begin, end, weights, queries);
      at += kLanes;
    }
  }
}

template <int N = kIntegerRows>
void AddAllIntegers(const Chunk<std::int8_t>& chunk, std::int64_t dim, Query* queries, int count) {
  int n = 0;
  for (; n + N <= count; n += N) {
    AddIntegersOfQueries<N>(chunk, dim, queries + n);
  }
  if constexpr (N > 1) {
    if (n < count) {
      AddAllIntegers<N / 2>(chunk, dim, queries + n, count - n);
    }
  }
}

}  // namespace
}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
