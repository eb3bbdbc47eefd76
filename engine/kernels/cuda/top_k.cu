// The highest logits of a row in two passes: each block sorts out its part of the vocabulary, a warp a slice,
// then one warp merges the parts' lists, a lane a part. Bytes: the logits once.
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kPerLane = 32;
constexpr int kPartLimit = kWarps * kWarpSize * kPerLane;
static_assert(kCudaTopKParts == kWarpSize, "a lane merges a part");
static_assert(kCudaTopKParts * kPartLimit == kCudaMaxTopKVocab);

struct Candidate {
  std::uint32_t key;  // KeyOf the logit; 0: none left
  std::int32_t id;
};

// Ranks as RankKey, but a NaN above everything, where the host sees it.
__device__ __forceinline__ std::uint32_t KeyOf(float x) { return isnan(x) ? 0xffffffffU : RankKey(x); }

// The best of the lanes' candidates, the lowest id among equals; every lane gets it.
__device__ __forceinline__ Candidate BestOfWarp(std::uint32_t key, std::int32_t id) {
  Candidate best;
  best.key = __reduce_max_sync(kFullWarp, key);
  best.id = __reduce_min_sync(kFullWarp, key == best.key ? id : INT32_MAX);
  return best;
}

// Merges sorted lists, one a lane, at `list` with `length` entries: the k best of all to out.
template <class Write>
__device__ __forceinline__ void Merge(const Candidate* list, int length, int k, const Write& write) {
  int at = 0;
  Candidate head = length > 0 ? list[0] : Candidate{0, INT32_MAX};
  for (int i = 0; i < k; ++i) {
    const Candidate best = BestOfWarp(head.key, head.id);
    if (head.key == best.key && head.id == best.id && best.key != 0) {
      ++at;
      head = at < length ? list[at] : Candidate{0, INT32_MAX};
    }
    write(i, best);
  }
}

__global__ void __launch_bounds__(kWarps* kWarpSize) PartKernel(const CudaTopKArgs args, int slice) {
  __shared__ Candidate lists[kWarps][kCudaMaxTopK];
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const auto warp = static_cast<int>(threadIdx.x / kWarpSize);
  const std::int64_t t = blockIdx.y;
  const float* logits = args.logits + t * args.logits_stride;
  const auto k = static_cast<int>(args.k);
  const int base = (static_cast<int>(blockIdx.x) * kWarps + warp) * slice;
  const int end = min(base + slice, static_cast<int>(args.vocab));
  std::uint32_t keys[kPerLane];
  std::uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int id = base + i * kWarpSize + lane;
    keys[i] = id < end ? KeyOf(logits[id]) : 0;
    best = max(best, keys[i]);
  }
  for (int c = 0; c < k; ++c) {
    int at = 0;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i) {
      at = keys[i] == best ? i : at;
    }
    const int id = base + at * kWarpSize + lane;
    const Candidate top = BestOfWarp(best, id);
    if (lane == 0) {
      lists[warp][c] = top;
    }
    if (top.key != 0 && best == top.key && id == top.id) {
      best = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        keys[i] = i == at ? 0 : keys[i];
        best = max(best, keys[i]);
      }
    }
  }
  __syncthreads();  // all warps' lists are there
  if (warp == 0) {
    auto* out = static_cast<Candidate*>(args.workspace) + (t * kCudaTopKParts + blockIdx.x) * k;
    Merge(lists[lane % kWarps], lane < kWarps ? k : 0, k, [&](int i, const Candidate& best_of_all) {
      if (lane == 0) {
        out[i] = best_of_all;
      }
    });
  }
}

__global__ void __launch_bounds__(kWarpSize) MergeKernel(const CudaTopKArgs args) {
  const auto lane = static_cast<int>(threadIdx.x);
  const std::int64_t t = blockIdx.x;
  const auto k = static_cast<int>(args.k);
  const auto* lists = static_cast<const Candidate*>(args.workspace) + (t * kCudaTopKParts + lane) * k;
  Merge(lists, k, k, [&](int i, const Candidate& best) {
    if (lane == 0) {
      args.ids[t * k + i] = best.id;
      if (args.values != nullptr) {
        args.values[t * k + i] = RankValue(best.key);
      }
    }
  });
}

}  // namespace

int LaunchTopK(const CudaTopKArgs& args, void* stream) {
  if (args.rows <= 0) {
    return 0;
  }
  if (args.vocab <= 0 || args.k <= 0 || args.k > kCudaMaxTopK || args.k > args.vocab || args.rows > 65535 ||
      args.vocab > kCudaMaxTopKVocab || args.workspace == nullptr ||
      args.workspace_bytes < CudaTopKWorkspaceBytes(args.rows, args.k)) {
    return kBadSizes;
  }
  const auto slice = static_cast<int>(CeilDiv(args.vocab, kCudaTopKParts * kWarps));
  PartKernel<<<dim3(kCudaTopKParts, static_cast<unsigned>(args.rows)), kWarps * kWarpSize, 0,
               AsStream(stream)>>>(args, slice);
  if (const int error = cudaGetLastError(); error != 0) {
    return error;
  }
  MergeKernel<<<static_cast<unsigned>(args.rows), kWarpSize, 0, AsStream(stream)>>>(args);
  return cudaGetLastError();
}

}  // namespace comoe::kernels
