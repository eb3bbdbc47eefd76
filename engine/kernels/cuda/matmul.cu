// Dense products with row-major weights: few rows at the speed of memory, many through tiles or cuBLAS, and a
// plain kernel for what neither takes.
//
// Few rows: a block takes 16 outputs over all inputs, a lane 16 bytes (eight inputs) of two of them; grid x
// is N / 16. Bytes: the weights once.
#include "engine/kernels/cuda/blas.h"
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"
#include "engine/kernels/cuda/few_rows.cuh"
#include "engine/kernels/cuda/tiles.h"

namespace comoe::kernels {
namespace {

// Rows above which cuBLAS is faster than our tiles. Up to here exact products read the weights once, where
// three products of cuBLAS read them three times.
constexpr std::int64_t kBlasRows = 64;

constexpr int kUnroll = 4;  // k32 steps on their way from memory

// x rows aligned to 16 bytes, K a multiple of 8.
template <int kTerms>
__global__ void __launch_bounds__(kFewThreads, 3) FewKernel(const CudaMatMulArgs args) {
  __shared__ float shared[kFewWarps * 4 * kWarpSize];
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int group = lane / 4;
  const int t = lane % 4;
  const auto k_end = static_cast<int>(args.k);
  const int steps = (k_end + 31) / 32;
  const int per_warp = (steps + kFewWarps - 1) / kFewWarps;
  const int begin = warp * per_warp;
  const int end = min(steps, begin + per_warp);
  const std::int64_t first_output = static_cast<std::int64_t>(blockIdx.x) * 16;
  const auto* weights = static_cast<const __nv_bfloat16*>(args.w);
  // Outputs beyond the last read its weights again.
  const __nv_bfloat16* rows[2] = {weights + min(first_output + group, args.n - 1) * args.k,
                                  weights + min(first_output + group + 8, args.n - 1) * args.k};

  float sums[4] = {};
  for (int first = begin; first < end; first += kUnroll) {
    uint4 a[kUnroll][2];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = (first + u) * 32 + t * 8;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        a[u][h] = first + u < end && k < k_end ? LoadOnce(rows[h] + k) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = (first + u) * 32 + t * 8;
      float4 low = make_float4(0, 0, 0, 0);
      float4 high = low;
      if (group < args.rows && first + u < end && k < k_end) {
        const auto* x = reinterpret_cast<const float4*>(args.x + group * args.x_stride + k);
        low = x[0];
        high = x[1];
      }
      std::uint32_t b[4][kTerms];
      SplitPair<Bf16Pair, kTerms>(low.x, low.y, b[0]);
      SplitPair<Bf16Pair, kTerms>(low.z, low.w, b[1]);
      SplitPair<Bf16Pair, kTerms>(high.x, high.y, b[2]);
      SplitPair<Bf16Pair, kTerms>(high.z, high.w, b[3]);
      MmaTerms<kTerms>(sums, a[u][0].x, a[u][1].x, a[u][0].y, a[u][1].y, b[0], b[1]);
      MmaTerms<kTerms>(sums, a[u][0].z, a[u][1].z, a[u][0].w, a[u][1].w, b[2], b[3]);
    }
  }

  const float total = SumOverWarps<4>(sums, shared);  // of value `warp`
  const int r = 2 * t + warp % 2;
  const std::int64_t n = first_output + group + warp / 2 * 8;
  if (warp < 4 && r < args.rows && n < args.n) {
    args.y[r * args.y_stride + n] = total + (args.bias == nullptr ? 0.0F : args.bias[n]);
  }
}

constexpr int kPlainRows = 8;
constexpr int kPlainWarps = 4;

// Any dtype, size and alignment: one warp an output, float32 products, eight rows at a time.
template <class T>
__global__ void PlainKernel(const CudaMatMulArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * kPlainWarps + threadIdx.x / kWarpSize;
  if (n >= args.n) {
    return;
  }
  const T* w = static_cast<const T*>(args.w) + n * args.k;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kPlainRows; first < args.rows;
       first += static_cast<std::int64_t>(gridDim.y) * kPlainRows) {
    float sums[kPlainRows] = {};
    const float* x[kPlainRows];
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      x[r] = args.x + min(first + r, args.rows - 1) * args.x_stride;  // rows beyond the last repeat it
    }
    for (std::int64_t k = lane; k < args.k; k += kWarpSize) {
      const float weight = ToFloat(w[k]);
#pragma unroll
      for (int r = 0; r < kPlainRows; ++r) {
        sums[r] = fmaf(x[r][k], weight, sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) {
      const float sum = WarpSum(sums[r]);
      if (lane == 0 && first + r < args.rows) {
        args.y[(first + r) * args.y_stride + n] = sum + (args.bias == nullptr ? 0.0F : args.bias[n]);
      }
    }
  }
}

int LaunchPlain(const CudaMatMulArgs& args, void* stream) {
  const std::int64_t row_groups = CeilDiv(args.rows, kPlainRows);
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.n, kPlainWarps)),
                  static_cast<unsigned>(row_groups < 1024 ? row_groups : 1024));
  const auto run = [&](auto* kernel) {
    kernel<<<grid, kPlainWarps * kWarpSize, 0, AsStream(stream)>>>(args);
    return static_cast<int>(cudaGetLastError());
  };
  switch (args.dtype) {
    case CudaDType::kF32:
      return run(PlainKernel<float>);
    case CudaDType::kBf16:
      return run(PlainKernel<__nv_bfloat16>);
    case CudaDType::kF16:
      return run(PlainKernel<__half>);
  }
  return kBadSizes;
}

int LaunchFew(const CudaMatMulArgs& args, void* stream) {
  const auto blocks = static_cast<unsigned>(CeilDiv(args.n, 16));
  const auto run = [&](auto* kernel) {
    kernel<<<blocks, kFewThreads, 0, AsStream(stream)>>>(args);
    return static_cast<int>(cudaGetLastError());
  };
  return args.precision == CudaPrecision::kExact ? run(FewKernel<3>) : run(FewKernel<1>);
}

}  // namespace

int LaunchMatMul(const CudaMatMulArgs& args, void* stream) {
  if (args.rows <= 0 || args.n <= 0) {
    return 0;
  }
  if (args.k <= 0 || args.k > INT32_MAX / 2 || args.n > INT32_MAX / 2) {
    return kBadSizes;
  }
  if (args.dtype != CudaDType::kBf16 || args.k % 8 != 0 || !Aligned16(args.w)) {
    return LaunchPlain(args, stream);
  }
  if (args.rows <= kCudaFewRows) {
    return VectorRows(args.x, args.x_stride) ? LaunchFew(args, stream) : LaunchPlain(args, stream);
  }
  if (args.workspace == nullptr || !Aligned16(args.workspace) ||
      args.workspace_bytes < CudaMatMulWorkspaceBytes(args.rows, args.k, args.precision)) {
    return kBadSizes;
  }
  const RowTerms x = RowTerms::Make(args.workspace, args.k, args.precision);
  if (const int error = LaunchRowTerms(args.x, args.x_stride, nullptr, args.rows, args.k, x, stream);
      error != 0) {
    return error;
  }
  if (args.blas != nullptr && args.rows > kBlasRows) {
    return BlasMatMul(args, x, stream);
  }
  TileJob job;
  job.weights = TileJob::Weights::kRows;
  job.single = {args.w, 0, static_cast<std::int32_t>(args.rows)};
  job.max_rows = job.total_rows = args.rows;
  job.n = static_cast<int>(args.n);
  job.k = static_cast<int>(args.k);
  job.x = x;
  job.x_cols = static_cast<int>(x.padded);
  job.bias = args.bias;
  job.y = args.y;
  job.y_stride = args.y_stride;
  return LaunchTiles(job, stream);
}

}  // namespace comoe::kernels
