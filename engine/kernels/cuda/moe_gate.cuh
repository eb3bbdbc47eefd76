// A router's choice for one row by a whole warp: any E up to 1024, any K, any logits. Logits become unsigned
// ranks (RankKey), so that the best of a warp is one reduction; lane l holds experts l * kPerLane, + 1, ...,
// so the lowest lane with the best rank has the lowest expert.
#pragma once

#include "engine/kernels/cuda/cuda_common.cuh"

namespace comoe::kernels {

// A lane's experts, of which the best can be taken. Up to four are kept in order, so that taking one is a few
// moves; of more, the best is searched for anew by the one lane that lost it.
template <int kPerLane>
class LaneExperts {
 public:
  static constexpr bool kSorted = kPerLane <= 4;

  // keys_[i] is that of expert first + i; 0: none.
  __device__ __forceinline__ std::uint32_t& operator[](int i) { return keys_[i]; }
  // Once all are set.
  __device__ __forceinline__ void Start() {
    if constexpr (kSorted) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        places_[i] = i;
      }
      // Neighbours change places only where the later is strictly better: equals stay in order.
#pragma unroll
      for (int round = 0; round < kPerLane; ++round) {
#pragma unroll
        for (int i = round % 2; i + 1 < kPerLane; i += 2) {
          const bool swap = keys_[i + 1] > keys_[i];
          const std::uint32_t high = max(keys_[i], keys_[i + 1]);
          keys_[i + 1] = min(keys_[i], keys_[i + 1]);
          keys_[i] = high;
          const int place = swap ? places_[i + 1] : places_[i];
          places_[i + 1] = swap ? places_[i] : places_[i + 1];
          places_[i] = place;
        }
      }
    } else {
      Search();
    }
  }
  __device__ __forceinline__ std::uint32_t best() const { return kSorted ? keys_[0] : best_; }
  __device__ __forceinline__ int best_place() const { return places_[0]; }
  __device__ __forceinline__ void TakeBest() {
    if constexpr (kSorted) {
#pragma unroll
      for (int i = 0; i + 1 < kPerLane; ++i) {
        keys_[i] = keys_[i + 1];
        places_[i] = places_[i + 1];
      }
      keys_[kPerLane - 1] = 0;
    } else {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        keys_[i] = i == places_[0] ? 0 : keys_[i];
      }
      Search();
    }
  }

 private:
  __device__ __forceinline__ void Search() {
    best_ = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      places_[0] = keys_[i] > best_ ? i : places_[0];
      best_ = max(best_, keys_[i]);
    }
  }

  std::uint32_t keys_[kPerLane];
  int places_[kSorted ? kPerLane : 1] = {};  // where the keys came from; kSorted: of the best alone
  std::uint32_t best_ = 0;
};

// Row t, by all lanes of a warp; E <= 32 * kPerLane.
template <int kPerLane>
__device__ __forceinline__ void GateRow(const CudaGateArgs& args, std::int64_t t, int lane) {
  const float* logits = args.logits + t * args.logits_stride;
  const auto experts = static_cast<int>(args.num_experts);
  const auto chosen = static_cast<int>(args.experts_per_row);
  const int first = lane * kPerLane;

  float values[kPerLane];
  const bool vectors = kPerLane % 4 == 0 && experts == kPerLane * kWarpSize &&
                       reinterpret_cast<std::uintptr_t>(logits) % 16 == 0;
  if (vectors) {
#pragma unroll
    for (int i = 0; i + 3 < kPerLane; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(logits + first + i);
      values[i] = v.x;
      values[i + 1] = v.y;
      values[i + 2] = v.z;
      values[i + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      values[i] = first + i < experts ? logits[first + i] : 0;
    }
  }
  LaneExperts<kPerLane> own;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    own[i] = first + i < experts ? RankKey(values[i]) : 0;
  }
  own.Start();
  const float maximum = RankValue(__reduce_max_sync(kFullWarp, own.best()));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    sum += first + i < experts ? exp2f((values[i] - maximum) * kLog2E) : 0;
  }
  sum = WarpSum(sum);

  // Lane c keeps choice c, c + 32, ...: K <= 32 needs one.
  float* weights = args.weights != nullptr ? args.weights : args.mapped_weights;
  float kept = 0;
  for (int c0 = 0; c0 < chosen; c0 += kWarpSize) {
    int my_expert = 0;
    std::uint32_t my_key = 0;
    const int upto = min(chosen - c0, kWarpSize);
    for (int c = 0; c < upto; ++c) {
      const std::uint32_t top = __reduce_max_sync(kFullWarp, own.best());
      const int owner = __ffs(static_cast<int>(__ballot_sync(kFullWarp, own.best() == top))) - 1;
      const int expert = owner * kPerLane + __shfl_sync(kFullWarp, own.best_place(), owner);
      if (lane == owner) {
        own.TakeBest();
      }
      my_expert = lane == c ? expert : my_expert;
      my_key = lane == c ? top : my_key;
    }
    const float weight = lane < upto ? exp2f((RankValue(my_key) - maximum) * kLog2E) / sum : 0;
    kept += WarpSum(weight);
    if (lane < upto) {
      const std::int64_t at = t * chosen + c0 + lane;
      if (args.experts != nullptr) {
        args.experts[at] = my_expert;
      }
      if (args.mapped_experts != nullptr) {
        args.mapped_experts[at] = my_expert;
      }
      const float written = args.normalize && chosen <= kWarpSize ? weight / kept : weight;
      weights[at] = written;
      if (args.mapped_weights != nullptr) {
        args.mapped_weights[at] = written;
      }
    }
  }
  if (args.normalize && chosen > kWarpSize) {
    for (int c = lane; c < chosen; c += kWarpSize) {  // each lane reads what it wrote
      const std::int64_t at = t * chosen + c;
      const float weight = weights[at] / kept;
      weights[at] = weight;
      if (args.mapped_weights != nullptr) {
        args.mapped_weights[at] = weight;
      }
    }
  }
}

// Whether moe_gate_rows.cu takes these sizes, and its launch.
bool GateRowsFit(const CudaGateArgs& args);
int LaunchGateRows(const CudaGateArgs& args, void* stream);

}  // namespace comoe::kernels
