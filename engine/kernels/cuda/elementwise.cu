// Embedding, addition and clamping: one thread an element or four; bound by memory.
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kThreads = 256;

// Grid: x covers the columns, y the rows (in steps of gridDim.y, which is limited to 65535).
struct RowGrid {
  dim3 grid;
  RowGrid(std::int64_t rows, std::int64_t units)
      : grid(static_cast<unsigned>(CeilDiv(units, kThreads)),
             static_cast<unsigned>(rows < 65535 ? rows : 65535)) {}
};

template <class T>
__global__ void EmbedKernel(const CudaEmbedArgs args) {
  const std::int64_t d = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (d >= args.cols) {
    return;
  }
  for (std::int64_t t = blockIdx.y; t < args.rows; t += gridDim.y) {
    const T* row = static_cast<const T*>(args.table) + args.ids[t] * args.cols;
    args.out[t * args.out_stride + d] = ToFloat(row[d]);
  }
}

__device__ __forceinline__ float Clamped(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

// Element-wise work in place on y, with x where the operation has one; Width elements a thread.
template <int Width, class Fn>
__global__ void ElementKernel(const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride,
                              std::int64_t rows, std::int64_t cols, Fn fn) {
  const std::int64_t d = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * Width;
  if (d >= cols) {
    return;
  }
  for (std::int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    if constexpr (Width == 4) {
      const float4 a = *reinterpret_cast<const float4*>(x + t * x_stride + d);
      float4* to = reinterpret_cast<float4*>(y + t * y_stride + d);
      const float4 b = *to;
      *to = make_float4(fn(a.x, b.x), fn(a.y, b.y), fn(a.z, b.z), fn(a.w, b.w));
    } else {
      y[t * y_stride + d] = fn(x[t * x_stride + d], y[t * y_stride + d]);
    }
  }
}

struct AddFn {
  __device__ float operator()(float x, float y) const { return y + x; }
};
struct ClampFn {
  float limit;
  __device__ float operator()(float x, float /*y*/) const { return Clamped(x, limit); }
};

template <class Fn>
int LaunchElements(const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride, std::int64_t rows,
                   std::int64_t cols, Fn fn, void* stream) {
  if (rows <= 0 || cols <= 0) {
    return 0;
  }
  if (cols % 4 == 0 && VectorRows(x, x_stride) && VectorRows(y, y_stride)) {
    ElementKernel<4, Fn><<<RowGrid(rows, cols / 4).grid, kThreads, 0, AsStream(stream)>>>(
        x, x_stride, y, y_stride, rows, cols, fn);
  } else {
    ElementKernel<1, Fn><<<RowGrid(rows, cols).grid, kThreads, 0, AsStream(stream)>>>(
        x, x_stride, y, y_stride, rows, cols, fn);
  }
  return cudaGetLastError();
}

}  // namespace

int LaunchEmbed(const CudaEmbedArgs& args, void* stream) {
  if (args.rows <= 0 || args.cols <= 0) {
    return 0;
  }
  const RowGrid grid(args.rows, args.cols);
  switch (args.dtype) {
    case CudaDType::kF32:
      EmbedKernel<float><<<grid.grid, kThreads, 0, AsStream(stream)>>>(args);
      break;
    case CudaDType::kBf16:
      EmbedKernel<__nv_bfloat16><<<grid.grid, kThreads, 0, AsStream(stream)>>>(args);
      break;
    case CudaDType::kF16:
      EmbedKernel<__half><<<grid.grid, kThreads, 0, AsStream(stream)>>>(args);
      break;
  }
  return cudaGetLastError();
}

int LaunchAdd(const CudaAddArgs& args, void* stream) {
  return LaunchElements(args.x, args.x_stride, args.y, args.y_stride, args.rows, args.cols, AddFn{}, stream);
}

int LaunchClamp(const CudaClampArgs& args, void* stream) {
  return LaunchElements(args.x, args.x_stride, args.x, args.x_stride, args.rows, args.cols,
                        ClampFn{args.limit}, stream);
}

}  // namespace comoe::kernels
