// Expert FFN over few rows an expert: bound by reading the weights.
//
// A block takes two panels (32 outputs; in gate_up a gate panel and its up panel) over all inputs, so that a
// lane's 16 bytes, four outputs of two inputs, are operands of two instructions: lanes 0 to 15 (groups 0 to
// 3) have the first panel, the others the second. Grid: x panels / 2, y works. Bytes: the weights once.
#include "engine/kernels/cuda/expert_ffn_parts.h"
#include "engine/kernels/cuda/few_rows.cuh"

namespace comoe::kernels {
namespace {

// kUnroll: k16 steps whose weights are on their way together.
template <int kTerms, int kUnroll, bool kSwiglu>
__global__ void __launch_bounds__(kFewThreads, 3) FewKernel(const ExpertJob job) {
  __shared__ float shared[kFewWarps * 8 * kWarpSize];
  const CudaExpertWork work = job.work[blockIdx.y];
  if (work.num_rows == 0 || work.num_rows > job.few_rows) {
    return;
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int group = lane / 4;
  const int t = lane % 4;
  const int pairs = (job.k + 1) / 2;
  const int steps = (pairs + 7) / 8;
  const int per_warp = (steps + kFewWarps - 1) / kFewWarps;
  const int begin = warp * per_warp;
  const int end = min(steps, begin + per_warp);

  const int panel = 2 * static_cast<int>(blockIdx.x) + group / 4;
  const char* weights =
      static_cast<const char*>(work.blob) + job.offset + panel * job.panel_bytes + group % 4 * 16;
  const int last_pair = panel < job.panels ? pairs : 0;  // nothing is read of a panel that is not there

  const float* x = nullptr;
  if (group < work.num_rows) {
    const std::int64_t at = work.first_row + group;
    x = job.x + (job.grouped == nullptr ? at : job.grouped[at]) * job.x_stride;
  }
  float sums[2][4] = {};  // [outputs 4j and 4j + 1, or 4j + 2 and 4j + 3]
  for (int first = begin; first < end; first += kUnroll) {
    uint4 a[kUnroll][2];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int pair = (first + u) * 8 + h * 4 + t;
        a[u][h] = first + u < end && pair < last_pair
                      ? LoadOnce(weights + static_cast<std::int64_t>(pair) * 64)
                      : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = (first + u) * 16 + 2 * t;
      float2 low = make_float2(0, 0);
      float2 high = low;
      if (x != nullptr && first + u < end) {
        low = LoadPair(x, k, job.k, job.vectors);
        high = LoadPair(x, k + 8, job.k, job.vectors);
      }
      std::uint32_t b0[kTerms];
      std::uint32_t b1[kTerms];
      SplitPair<Bf16Pair, kTerms>(low.x, low.y, b0);
      SplitPair<Bf16Pair, kTerms>(high.x, high.y, b1);
      MmaTerms<kTerms>(sums[0], a[u][0].x, a[u][0].y, a[u][1].x, a[u][1].y, b0, b1);
      MmaTerms<kTerms>(sums[1], a[u][0].z, a[u][0].w, a[u][1].z, a[u][1].w, b0, b1);
    }
  }

  float values[8];
#pragma unroll
  for (int v = 0; v < 8; ++v) {
    values[v] = sums[v / 4][v % 4];
  }
  // Warp w: outputs 4j + 2 * (w / 4) + (c >> 1) of row 2 t + (c & 1), c = w % 4.
  const float total = SumOverWarps<8>(values, shared);
  const int c = warp % 4;
  const int output = group % 4 * 4 + warp / 4 * 2 + (c >> 1);
  const int r = 2 * t + (c & 1);
  float* y = job.y + (work.first_row + r) * job.y_stride;
  if constexpr (kSwiglu) {
    const float up = __shfl_xor_sync(kFullWarp, total, 16);
    if (group < 4 && r < work.num_rows) {
      y[static_cast<int>(blockIdx.x) * 16 + output] = Silu(total) * up;
    }
  } else {
    const int n = panel * 16 + output;
    if (n < job.n && r < work.num_rows) {
      y[n] = total;
    }
  }
}

template <bool kSwiglu>
int Launch(const ExpertJob& job, CudaPrecision precision, void* stream) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(job.panels, 2)), static_cast<unsigned>(job.num_work));
  const auto run = [&](auto* kernel) {
    kernel<<<grid, kFewThreads, 0, AsStream(stream)>>>(job);
    return static_cast<int>(cudaGetLastError());
  };
  // Three where that divides a warp's share and four does not: no load is left waiting alone.
  const std::int64_t share = CeilDiv(CeilDiv(job.k, 16), kFewWarps);
  const bool three = share % 4 != 0 && share % 3 == 0;
  if (precision == CudaPrecision::kExact) {
    return three ? run(FewKernel<3, 3, kSwiglu>) : run(FewKernel<3, 4, kSwiglu>);
  }
  return three ? run(FewKernel<1, 3, kSwiglu>) : run(FewKernel<1, 4, kSwiglu>);
}

}  // namespace

int LaunchExpertFew(const ExpertJob& job, CudaPrecision precision, void* stream) {
  return job.swiglu ? Launch<true>(job, precision, stream) : Launch<false>(job, precision, stream);
}

}  // namespace comoe::kernels
