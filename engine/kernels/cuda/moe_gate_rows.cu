// A router's choice for K <= 8 of E <= 256, several rows a warp: 1, 2 or 4 lanes a row.
//
// A lane sorts its logits eight at a time and merges the lists into its eight best, by minima and maxima
// alone: an expert's number lies, complemented, in the lowest bits of its logit, so that nothing has to move
// beside it. Lanes of a row then merge theirs by halves, so that each ends with its share of the row's eight.
// What the number displaced may have decided: the chosen logits are read again, and the row is redone by the
// whole warp (GateRow) unless they stand strictly in order and the last is above all that the dropped ones
// can be. This proves the choice; it fails for equals at the edge or of negative logits, for infinities and
// NaN, and otherwise for about one row in 4,000 of 64 experts and in 1,300 of 256 (normally distributed
// logits).
//
// Bytes: E floats in, 8 K out. Minima and maxima issue at half rate: for 64 experts and fewer the floor is
// set by them, above by the bytes (counts and floors: cuda_kernels_bench.cc).
#include "engine/kernels/cuda/cuda_launches.h"
#include "engine/kernels/cuda/moe_gate.cuh"

namespace comoe::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kBest = 8;
constexpr float kLowest = -3.402823466e38F;

__device__ __forceinline__ void Order(float& high, float& low) {
  const float highest = fmaxf(high, low);
  low = fminf(high, low);
  high = highest;
}

// Eight values, highest first: Batcher's odd-even merge sort, 19 comparisons.
__device__ __forceinline__ void SortEight(float (&v)[kBest]) {
#pragma unroll
  for (int p = 1; p < kBest; p *= 2) {
#pragma unroll
    for (int k = p; k > 0; k /= 2) {
#pragma unroll
      for (int i = 0; i < kBest; ++i) {
        const int from = k % p;
        const bool first = i >= from && (i - from) / k % 2 == 0 && i + k < kBest;
        if (first && i / (2 * p) == (i + k) / (2 * p)) {
          Order(v[i], v[i + k]);
        }
      }
    }
  }
}

// Highest first, of values that rise and then fall, or the other way.
template <int kSize>
__device__ __forceinline__ void SortBitonic(float (&v)[kSize]) {
#pragma unroll
  for (int step = kSize / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if ((i & step) == 0) {
        Order(v[i], v[i + step]);
      }
    }
  }
}

// Both sorted lists' eight best to `best`.
__device__ __forceinline__ void MergeLists(float (&best)[kBest], const float (&other)[kBest]) {
#pragma unroll
  for (int i = 0; i < kBest; ++i) {
    best[i] = fmaxf(best[i], other[kBest - 1 - i]);
  }
  SortBitonic(best);
}

// mine[i] and the value that lane `lane ^ mask` holds in place 3 - i: the higher to mine[i], the other to
// `dropped`.
__device__ __forceinline__ void KeepHigher(float (&mine)[4], const float (&sent)[4], int mask,
                                           float& dropped) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float theirs = __shfl_xor_sync(kFullWarp, sent[3 - i], mask);
    dropped = fmaxf(dropped, fminf(mine[i], theirs));
    mine[i] = fmaxf(mine[i], theirs);
  }
}

// The eight best of a row's lanes' lists; lane r of the row gets those of ranks r * 8 / kLanes, + 1, ...
template <int kLanes>
__device__ __forceinline__ void MergeLanes(const float (&best)[kBest], int lane, float& dropped,
                                           float (&own)[kBest / kLanes]) {
  if constexpr (kLanes == 1) {
#pragma unroll
    for (int i = 0; i < kBest; ++i) {
      own[i] = best[i];
    }
  } else {
    const bool odd = (lane & 1) != 0;
    // With lists a and b, c[i] = max(a[i], b[7 - i]) are the eight best, falling and then rising: the even
    // lane makes c[0], ..., c[3], the odd one c[7], ..., c[4], and the higher of c[i] and c[i + 4] go to the
    // even.
    float four[4] = {best[0], best[1], best[2], best[3]};
    const float sent[4] = {best[4], best[5], best[6], best[7]};
    KeepHigher(four, sent, 1, dropped);
    float theirs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      theirs[i] = __shfl_xor_sync(kFullWarp, four[3 - i], 1);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four[i] = odd ? fminf(four[i], theirs[i]) : fmaxf(four[i], theirs[i]);
    }
    SortBitonic(four);
    if constexpr (kLanes == 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        own[i] = four[i];
      }
    } else {
      // The same of the pairs of lanes: c[0 .. 4) in lane 0, c[4 .. 8) in 1, c[7 .. 3) in 2, c[3 .. 0] in 3.
      const bool second = (lane & 2) != 0;
      const float again[4] = {four[0], four[1], four[2], four[3]};
      KeepHigher(four, again, 3, dropped);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float other = __shfl_xor_sync(kFullWarp, four[i], 1);
        four[i] = second ? fminf(four[i], other) : fmaxf(four[i], other);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        own[i] = odd ? fminf(four[i], four[i + 2]) : fmaxf(four[i], four[i + 2]);
      }
      Order(own[0], own[1]);
    }
  }
}

// The highest logit whose upper bits are those of `packed`.
template <std::uint32_t kNumberBits>
__device__ __forceinline__ float HighestOf(float packed) {
  const std::uint32_t bits = __float_as_uint(packed);
  return __uint_as_float(packed < 0 ? bits & ~kNumberBits : bits | kNumberBits);
}

// Of a sum of powers, at least 1; one unit in the last place off.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x; results below the normal numbers are 0.
__device__ __forceinline__ float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Choices rank0, + 1, ... of a row at `to`; K and `to` even where `pairs`.
template <int kOwn, class T>
__device__ __forceinline__ void Store(T* to, const T (&own)[kOwn], int rank0, int chosen, bool pairs) {
  struct alignas(8) Pair {
    T first;
    T second;
  };
#pragma unroll
  for (int j = 0; j < kOwn; j += 2) {
    if (pairs) {
      if (rank0 + j < chosen) {
        *reinterpret_cast<Pair*>(to + rank0 + j) = {own[j], own[j + 1]};
      }
    } else {
      if (rank0 + j < chosen) {
        to[rank0 + j] = own[j];
      }
      if (rank0 + j + 1 < chosen) {
        to[rank0 + j + 1] = own[j + 1];
      }
    }
  }
}

// The parts of RowsKernel: kLanes lanes a row, kValues logits a lane, E <= kLanes * kValues, a multiple of 4.
// Lane r of a row has the 16-byte chunks r, r + kLanes, ... of its logits.
template <int kValues, int kLanes>
struct Rows {
  static constexpr int kOwn = kBest / kLanes;
  static constexpr std::uint32_t kNumberBits = kValues * kLanes - 1;
  static constexpr std::uint32_t kLaneBits = (kLanes - 1) * 4;

  static __device__ __forceinline__ void Load(const float* logits, int r, int experts, float (&x)[kValues]) {
    const auto* chunks = reinterpret_cast<const float4*>(logits) + r;
    const auto set = [&](int i, float4 v) {
      x[i] = v.x;
      x[i + 1] = v.y;
      x[i + 2] = v.z;
      x[i + 3] = v.w;
    };
    if (experts == kValues * kLanes) {
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        set(i, __ldg(chunks + i / 4 * kLanes));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        set(i, i * kLanes + r * 4 < experts ? __ldg(chunks + i / 4 * kLanes)
                                            : make_float4(kLowest, kLowest, kLowest, kLowest));
      }
    }
  }

  // The lane's best, highest first, with their numbers in place of the bits that `upper_bits` leaves out.
  // Returns NaN if a logit is not finite, else 0.
  static __device__ __forceinline__ float Select(const float (&x)[kValues], int r, std::uint32_t upper_bits,
                                                 float (&best)[kBest]) {
    float not_finite = 0;
#pragma unroll
    for (int first = 0; first < kValues; first += kBest) {
      float list[kBest];
#pragma unroll
      for (int i = 0; i < kBest; ++i) {
        const auto number = static_cast<std::uint32_t>((first + i) / 4 * 4 * kLanes + i % 4);
        list[i] = __uint_as_float((__float_as_uint(x[first + i]) & upper_bits) |
                                  (~number & kNumberBits & ~kLaneBits));
        not_finite = fmaf(x[first + i], 0.0F, not_finite);
      }
      SortEight(list);
      if (first == 0) {
#pragma unroll
        for (int i = 0; i < kBest; ++i) {
          best[i] = list[i];
        }
      } else {
        MergeLists(best, list);
      }
    }
    // The lane's bits of the numbers are the same for all of its list, so that its order stays.
#pragma unroll
    for (int i = 0; i < kBest; ++i) {
      best[i] = __uint_as_float(__float_as_uint(best[i]) | (~static_cast<std::uint32_t>(r * 4) & kLaneBits));
    }
    return not_finite;
  }

  // Whether this lane's choices stand strictly before their successors, the row's last before all that was
  // dropped.
  static __device__ __forceinline__ bool InOrder(const int (&expert)[kOwn], const float (&value)[kOwn], int r,
                                                 float dropped) {
    float next_value = __shfl_down_sync(kFullWarp, value[0], 1, kLanes);
    int next_expert = __shfl_down_sync(kFullWarp, expert[0], 1, kLanes);
    if (r == kLanes - 1) {
      next_value = HighestOf<kNumberBits>(dropped);
      next_expert = -1;
    }
    bool in_order = true;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const float after = j + 1 < kOwn ? value[j + 1] : next_value;
      const int after_expert = j + 1 < kOwn ? expert[j + 1] : next_expert;
      in_order &= (value[j] > after) | ((value[j] == after) & (expert[j] < after_expert));
    }
    return in_order;
  }

  // The choices' weights: of the first `chosen` to a sum of 1, or as part of all logits' softmax.
  static __device__ __forceinline__ void Weigh(const float (&x)[kValues], const float (&value)[kOwn],
                                               int rank0, int chosen, bool normalize, float (&weight)[kOwn]) {
    const float maximum = __shfl_sync(kFullWarp, value[0], 0, kLanes);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      weight[j] = PowerOfTwo((value[j] - maximum) * kLog2E);
      sum += rank0 + j < chosen ? weight[j] : 0;
    }
    if (!normalize) {
      sum = 0;
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        sum += PowerOfTwo((x[i] - maximum) * kLog2E);
      }
    }
    const float factor = Reciprocal(WarpSum<kLanes>(sum));
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      weight[j] *= factor;
    }
  }
};

// Grid: kWarps * 32 / kLanes rows a block. `pairs`: K and all results' addresses are even. `upper_bits` is
// ~(kLanes * kValues - 1): as an argument it lies in a register, so that packing takes one instruction.
template <int kValues, int kLanes>
__global__ void __launch_bounds__(kWarps* kWarpSize, kValues == 64   ? 5
                                                     : kValues == 32 ? 8
                                                                     : 10)
    RowsKernel(const CudaGateArgs args, bool pairs, std::uint32_t upper_bits) {
  using Part = Rows<kValues, kLanes>;
  constexpr int kRows = kWarpSize / kLanes;
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int r = lane % kLanes;
  const int row = lane / kLanes;
  const std::int64_t t0 = (static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize) * kRows;
  if (t0 >= args.rows) {
    return;
  }
  const auto rows = static_cast<int>(min(args.rows - t0, std::int64_t{kRows}));
  const float* logits = args.logits + t0 * args.logits_stride + min(row, rows - 1) * args.logits_stride;
  asm volatile("" : "+l"(logits));  // keeps the address, which is used again below
  const auto experts = static_cast<int>(args.num_experts);
  const auto chosen = static_cast<int>(args.experts_per_row);

  float x[kValues];
  float best[kBest];
  float own[Part::kOwn];
  Part::Load(logits, r, experts, x);
  const float not_finite = Part::Select(x, r, upper_bits, best);
  // At least all that the lane has dropped. (It is hardly ever among the row's best itself.)
  float dropped = kValues > kBest ? best[kBest - 1] : -INFINITY;
  MergeLanes<kLanes>(best, lane, dropped, own);
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    dropped = fmaxf(dropped, __shfl_xor_sync(kFullWarp, dropped, step));
  }
  int expert[Part::kOwn];
  float value[Part::kOwn];
#pragma unroll
  for (int j = 0; j < Part::kOwn; ++j) {
    expert[j] = min(static_cast<int>(~__float_as_uint(own[j]) & Part::kNumberBits), experts - 1);
    value[j] = __ldg(logits + static_cast<unsigned>(expert[j]));
  }
  const bool lane_proven = Part::InOrder(expert, value, r, dropped) & (not_finite == 0);
  const unsigned lanes = ((1U << kLanes) - 1U) << (row * kLanes);
  const bool proven = (__ballot_sync(kFullWarp, lane_proven) & lanes) == lanes;

  float weight[Part::kOwn];
  const int rank0 = r * Part::kOwn;
  Part::Weigh(x, value, rank0, chosen, args.normalize, weight);
  if (proven && row < rows) {
    const std::int64_t at = (t0 + row) * chosen;
    if (args.experts != nullptr) {
      Store(args.experts + at, expert, rank0, chosen, pairs);
    }
    if (args.weights != nullptr) {
      Store(args.weights + at, weight, rank0, chosen, pairs);
    }
    if (args.mapped_experts != nullptr) {
      Store(args.mapped_experts + at, expert, rank0, chosen, pairs);
    }
    if (args.mapped_weights != nullptr) {
      Store(args.mapped_weights + at, weight, rank0, chosen, pairs);
    }
  }
  constexpr int kPerLane = (kValues * kLanes + kWarpSize - 1) / kWarpSize;
  unsigned again = __ballot_sync(kFullWarp, !proven && r == 0 && row < rows);
  while (again != 0) {
    GateRow<kPerLane>(args, t0 + (__ffs(static_cast<int>(again)) - 1) / kLanes, lane);
    again &= again - 1;
  }
}

template <int kValues, int kLanes>
int Launch(const CudaGateArgs& args, void* stream) {
  const auto even = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 8 == 0; };
  const bool pairs = args.experts_per_row % 2 == 0 && even(args.experts) && even(args.weights) &&
                     even(args.mapped_experts) && even(args.mapped_weights);
  const auto blocks = static_cast<unsigned>(CeilDiv(args.rows, kWarps * kWarpSize / kLanes));
  RowsKernel<kValues, kLanes><<<blocks, kWarps * kWarpSize, 0, AsStream(stream)>>>(
      args, pairs, ~static_cast<std::uint32_t>(kValues * kLanes - 1));
  return static_cast<int>(cudaGetLastError());
}

}  // namespace

bool GateRowsFit(const CudaGateArgs& args) {
  return args.experts_per_row <= kBest && args.num_experts >= kBest && args.num_experts <= 256 &&
         args.num_experts % 4 == 0 && VectorRows(args.logits, args.logits_stride);
}

int LaunchGateRows(const CudaGateArgs& args, void* stream) {
  if (args.num_experts <= 8) {
    return Launch<8, 1>(args, stream);
  }
  if (args.num_experts <= 16) {
    return Launch<8, 2>(args, stream);
  }
  if (args.num_experts <= 32) {
    return Launch<8, 4>(args, stream);
  }
  if (args.num_experts <= 64) {
    return Launch<16, 4>(args, stream);
  }
  if (args.num_experts <= 128) {
    return Launch<32, 4>(args, stream);
  }
  return Launch<64, 4>(args, stream);
}

}  // namespace comoe::kernels
