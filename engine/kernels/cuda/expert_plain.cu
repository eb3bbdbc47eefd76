// Expert FFN with F32 or F16 weights: float32 products, one warp a panel (or a gate panel and its up panel),
// eight rows at a time. Lanes 0 to 15 take even inputs of the panel's outputs, the others odd ones.
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/expert_ffn_parts.h"

namespace comoe::kernels {
namespace {

constexpr int kRows = 8;
constexpr int kWarps = 4;

template <class T>
__device__ __forceinline__ void PanelSums(const T* panel, const float* const (&x)[kRows], int k_end, int lane,
                                          float (&sums)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] = 0;
  }
  for (int k = lane / 16; k < k_end; k += 2) {
    const float w = ToFloat(panel[static_cast<std::int64_t>(k) * 16 + lane % 16]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fmaf(x[r][k], w, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] += __shfl_xor_sync(kFullWarp, sums[r], 16);
  }
}

template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize) PlainKernel(const ExpertJob job) {
  const CudaExpertWork work = job.work[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int step = job.swiglu ? 2 : 1;
  const int panel =
      (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize) * step;
  if (panel >= job.panels) {
    return;
  }
  const char* data = static_cast<const char*>(work.blob) + job.offset + panel * job.panel_bytes;
  const int n = panel / step * 16 + lane % 16;
  for (int first = static_cast<int>(blockIdx.z) * kRows; first < work.num_rows; first += gridDim.z * kRows) {
    const float* x[kRows];
    for (int r = 0; r < kRows; ++r) {
      // Rows beyond the last repeat it.
      const std::int64_t at = work.first_row + min(first + r, work.num_rows - 1);
      x[r] = job.x + (job.grouped == nullptr ? at : job.grouped[at]) * job.x_stride;
    }
    float sums[kRows];
    float up[kRows];
    PanelSums(reinterpret_cast<const T*>(data), x, job.k, lane, sums);
    if (job.swiglu) {
      PanelSums(reinterpret_cast<const T*>(data + job.panel_bytes), x, job.k, lane, up);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r < work.num_rows && lane < 16 && n < job.n) {
        job.y[(work.first_row + first + r) * job.y_stride + n] = job.swiglu ? Silu(sums[r]) * up[r] : sums[r];
      }
    }
  }
}

}  // namespace

int LaunchExpertPlain(const ExpertJob& job, CudaDType dtype, void* stream) {
  const dim3 grid(static_cast<unsigned>(CeilDiv(job.panels, job.swiglu ? 2 * kWarps : kWarps)),
                  static_cast<unsigned>(job.num_work), 4);
  if (dtype == CudaDType::kF32) {
    PlainKernel<float><<<grid, kWarps * kWarpSize, 0, AsStream(stream)>>>(job);
  } else {
    PlainKernel<__half><<<grid, kWarps * kWarpSize, 0, AsStream(stream)>>>(job);
  }
  return cudaGetLastError();
}

}  // namespace comoe::kernels
