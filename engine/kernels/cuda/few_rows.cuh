// What the kernels for few rows share. They read every weight once, from memory straight into the A fragments
// of tensor-core instructions, and the rows of x are the columns of B: up to 8 rows cost what one does. The
// eight warps of a block each take an eighth of the inputs; their sums are added in order, so a row's result
// depends on nothing but its own inputs.
#pragma once

#include "engine/kernels/cuda/cuda_common.cuh"

namespace comoe::kernels {

inline constexpr int kFewWarps = 8;
inline constexpr int kFewThreads = kFewWarps * kWarpSize;

// x[k], x[k + 1], zero from `end` on. `vectors`: k and the row's address are even.
__device__ __forceinline__ float2 LoadPair(const float* x, int k, int end, bool vectors) {
  if (vectors && k + 1 < end) {
    return *reinterpret_cast<const float2*>(x + k);
  }
  return make_float2(k < end ? x[k] : 0, k + 1 < end ? x[k + 1] : 0);
}

// c += a b with b given as terms, the smallest first.
template <int kTerms>
__device__ __forceinline__ void MmaTerms(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, const std::uint32_t (&b0)[kTerms],
                                         const std::uint32_t (&b1)[kTerms]) {
#pragma unroll
  for (int i = kTerms - 1; i >= 0; --i) {
    Mma<Bf16Pair>(c, a0, a1, a2, a3, b0[i], b1[i]);
  }
}

// The sums of the warps' values, in the order of warps: each warp hands in kValues <= 8 floats a lane; warp w
// gets the total of value w of its lane (warps beyond kValues get 0). `shared`: [8][kValues][32] floats.
template <int kValues>
__device__ __forceinline__ float SumOverWarps(const float (&values)[kValues], float* shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int v = 0; v < kValues; ++v) {
    shared[(warp * kValues + v) * kWarpSize + lane] = values[v];
  }
  __syncthreads();  // all warps' sums are there
  float total = 0;
  if (warp < kValues) {
#pragma unroll
    for (int w = 0; w < kFewWarps; ++w) {
      total += shared[(w * kValues + warp) * kWarpSize + lane];
    }
  }
  return total;
}

}  // namespace comoe::kernels
