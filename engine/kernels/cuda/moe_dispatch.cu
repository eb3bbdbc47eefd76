// Groups (row, choice) pairs by expert without the host and without atomics in memory: one block an expert,
// in which each warp takes a run of pairs. A first pass learns how many pairs and experts come before its own
// and how many pairs each warp has; a second numbers them in order. E * T * K reads, twice, from the cache.
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMaxExperts = 1024;

__global__ void __launch_bounds__(kThreads) DispatchKernel(const CudaDispatchArgs args, int max_work) {
  __shared__ std::uint32_t present[kMaxExperts / 32];  // has a slot
  __shared__ std::uint32_t used[kMaxExperts / 32];     // and a pair
  __shared__ int own_pairs[kWarps];
  __shared__ int pairs_before[kWarps];
  const auto expert = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int warp = thread / kWarpSize;
  const auto pairs = static_cast<int>(args.rows * args.experts_per_row);
  const auto experts = static_cast<int>(args.num_experts);
  const auto per_row = static_cast<int>(args.experts_per_row);
  const int words = (experts + 31) / 32;
  for (int w = warp; w < words; w += kWarps) {
    const int e = w * 32 + lane;
    const unsigned word = __ballot_sync(kFullWarp, e < experts && args.slots[e] != 0);
    if (lane == 0) {
      present[w] = word;
      used[w] = 0;
    }
  }
  __syncthreads();  // the set of experts with a slot is complete
  const auto is_present = [&](int e) {
    return static_cast<unsigned>(e) < static_cast<unsigned>(experts) &&
           (present[e / 32] >> (e % 32) & 1) != 0;
  };

  // This warp's pairs, in whole steps of the warp.
  const int share = ((pairs + kWarps - 1) / kWarps + kWarpSize - 1) / kWarpSize * kWarpSize;
  const int begin = warp * share;
  const int end = min(begin + share, pairs);
  int before = 0;  // pairs of experts before this one
  int own = 0;
  for (int i = begin + lane; i < end; i += kWarpSize) {
    const int e = args.experts[i];
    if (is_present(e)) {
      before += e < expert ? 1 : 0;
      own += e == expert ? 1 : 0;
      atomicOr(&used[e / 32], 1U << (e % 32));
    } else if (expert == 0) {
      args.source[i] = -1;
    }
  }
  before = __reduce_add_sync(kFullWarp, before);
  own = __reduce_add_sync(kFullWarp, own);
  if (lane == 0) {
    pairs_before[warp] = before;
    own_pairs[warp] = own;
  }
  __syncthreads();  // the warps' counts and the set of used experts are complete
  before = 0;
  int total_own = 0;
  int at = 0;  // of this warp's first pair, among the expert's
  for (int w = 0; w < kWarps; ++w) {
    before += pairs_before[w];
    at += w < warp ? own_pairs[w] : 0;
    total_own += own_pairs[w];
  }
  if (thread == 0 || expert == 0) {
    int index = 0;  // of this expert's work
    int total = 0;
    for (int w = 0; w < words; ++w) {
      total += __popc(used[w]);
      const int low = expert - w * 32;
      const std::uint32_t mask = low >= 32 ? 0xffffffffU : low <= 0 ? 0 : (1U << low) - 1;
      index += __popc(used[w] & mask);
    }
    if (thread == 0 && total_own > 0) {
      args.work[index] = {reinterpret_cast<const void*>(args.slots[expert]), before, total_own};
    }
    if (expert == 0) {
      if (thread == 0 && args.num_work != nullptr) {
        *args.num_work = total;
      }
      for (int w = total + thread; w < max_work; w += kThreads) {
        args.work[w] = {nullptr, 0, 0};
      }
    }
  }
  if (own > 0) {
    at += before;
    for (int first = begin; first < end; first += kWarpSize) {
      const int i = first + lane;
      const bool mine = i < end && args.experts[i] == expert;
      const unsigned votes = __ballot_sync(kFullWarp, mine);
      if (mine) {
        const int place = at + __popc(votes & ((1U << lane) - 1));
        args.grouped[place] = i / per_row;
        args.source[i] = place;
      }
      at += __popc(votes);
    }
  }
  if (expert == experts - 1) {
    for (int i = before + total_own + thread; i < pairs; i += kThreads) {
      args.grouped[i] = -1;
    }
  }
}

}  // namespace

int LaunchDispatch(const CudaDispatchArgs& args, void* stream) {
  const std::int64_t pairs = args.rows * args.experts_per_row;
  if (args.num_experts <= 0 || args.num_experts > kMaxExperts || args.rows < 0 || args.experts_per_row <= 0 ||
      pairs > INT32_MAX / 2) {
    return kBadSizes;
  }
  const std::int64_t max_work = pairs < args.num_experts ? pairs : args.num_experts;
  DispatchKernel<<<static_cast<unsigned>(args.num_experts), kThreads, 0, AsStream(stream)>>>(
      args, static_cast<int>(max_work));
  return cudaGetLastError();
}

}  // namespace comoe::kernels
