// The experts' results, weighted, in the order of choices, then the shared expert, then the residual stream:
// one thread four columns of a row. Bytes: K + 2 (+ 1 with a shared expert) floats an element.
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;  // choices read together

template <class V>
struct Ops;
template <>
struct Ops<float> {
  static __device__ __forceinline__ float Zero() { return 0; }
  static __device__ __forceinline__ void AddScaled(float& sum, float w, float v) { sum += w * v; }
};
template <>
struct Ops<float4> {
  static __device__ __forceinline__ float4 Zero() { return make_float4(0, 0, 0, 0); }
  static __device__ __forceinline__ void AddScaled(float4& sum, float w, float4 v) {
    sum.x += w * v.x;
    sum.y += w * v.y;
    sum.z += w * v.z;
    sum.w += w * v.w;
  }
};

// Row `source`, of the device's or of the host's.
template <class V>
__device__ __forceinline__ V LoadSource(const CudaCombineArgs& args, std::int64_t source, std::int64_t d) {
  const float* row = args.mapped_y == nullptr || source < args.y_rows
                         ? args.y + source * args.y_stride
                         : args.mapped_y + (source - args.y_rows) * args.mapped_y_stride;
  return *reinterpret_cast<const V*>(row + d);
}

// V: float, or float4 where all rows are aligned. Grid: x columns, y rows.
template <class V>
__global__ void __launch_bounds__(kThreads) CombineKernel(const CudaCombineArgs args) {
  constexpr int kWidth = sizeof(V) / sizeof(float);
  const std::int64_t d = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (d >= args.cols) {
    return;
  }
  const auto choices = static_cast<int>(args.experts_per_row);
  for (std::int64_t t = blockIdx.y; t < args.rows; t += gridDim.y) {
    V* out = reinterpret_cast<V*>(args.out + t * args.out_stride + d);
    V residual = *out;
    V sum = Ops<V>::Zero();
    for (int first = 0; first < choices; first += kAhead) {
      V v[kAhead];
      float w[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t pair = t * choices + first + i;
        const int source = first + i < choices ? args.source[pair] : -1;
        w[i] = source >= 0 ? args.weights[pair] : 0;
        v[i] = source >= 0 ? LoadSource<V>(args, source, d) : Ops<V>::Zero();
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        Ops<V>::AddScaled(sum, w[i], v[i]);
      }
    }
    if (args.shared != nullptr) {
      const float gate = args.shared_gate == nullptr
                             ? 1.0F
                             : 1.0F / (1.0F + expf(-args.shared_gate[t * args.shared_gate_stride]));
      Ops<V>::AddScaled(sum, gate, *reinterpret_cast<const V*>(args.shared + t * args.shared_stride + d));
    }
    Ops<V>::AddScaled(residual, 1.0F, sum);
    *out = residual;
  }
}

}  // namespace

int LaunchCombine(const CudaCombineArgs& args, void* stream) {
  if (args.rows <= 0 || args.cols <= 0) {
    return 0;
  }
  if (args.experts_per_row < 0) {
    return kBadSizes;
  }
  const bool vectors = args.cols % 4 == 0 && VectorRows(args.y, args.y_stride) &&
                       VectorRows(args.out, args.out_stride) &&
                       (args.mapped_y == nullptr || VectorRows(args.mapped_y, args.mapped_y_stride)) &&
                       (args.shared == nullptr || VectorRows(args.shared, args.shared_stride));
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.cols, vectors ? 4 * kThreads : kThreads)),
                  static_cast<unsigned>(args.rows < 65535 ? args.rows : 65535));
  if (vectors) {
    CombineKernel<float4><<<grid, kThreads, 0, AsStream(stream)>>>(args);
  } else {
    CombineKernel<float><<<grid, kThreads, 0, AsStream(stream)>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace comoe::kernels
