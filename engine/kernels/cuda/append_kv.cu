// Writes keys and values of a step's rows to their blocks, one block of threads a KV block and head. Keys are
// written in the order they lie ([P, 16]), so that writes are whole sectors; the rows they come from are read
// through the cache. Bytes: each element read once and written once.
#include "engine/kernels/cuda/attention_parts.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kThreads = 128;

// A half's largest finite value takes the place of what does not fit (tensor::StoreKv); NaN stays.
__device__ __forceinline__ void Store(float value, __half* to) {
  if (value > 65504.0F) {
    value = 65504.0F;
  } else if (value < -65504.0F) {
    value = -65504.0F;
  }
  *to = __float2half_rn(value);
}
__device__ __forceinline__ void Store(float value, float* to) { *to = value; }

// Grid: x KV blocks that a span touches, y heads, z spans.
template <class T>
__global__ void __launch_bounds__(kThreads) AppendKernel(const CudaAppendKvArgs args) {
  const CudaSpan span = args.kv.spans[blockIdx.z];
  const int block = span.start_position / kKvTokens + static_cast<int>(blockIdx.x);
  // Rows of the span in this block.
  const int first = max(block * kKvTokens, span.start_position) - span.start_position;
  const int last = min((block + 1) * kKvTokens, span.start_position + span.num_rows) - span.start_position;
  if (first >= last) {
    return;
  }
  const auto dim = static_cast<int>(args.kv.head_dim);
  const auto head = static_cast<int>(blockIdx.y);
  T* keys = KvHead<T>(args.kv, args.kv.blocks[span.first_block + block], head);
  T* values = keys + dim * kKvTokens;
  const int count = last - first;
  const int slot = (span.start_position + first) % kKvTokens;
  const float* from_keys = args.keys + (span.first_row + first) * args.keys_stride + head * dim;
  const float* from_values = args.values + (span.first_row + first) * args.values_stride + head * dim;
  for (int i = static_cast<int>(threadIdx.x); i < dim * count; i += kThreads) {
    const int p = i / count;
    const int row = i % count;
    Store(from_keys[row * args.keys_stride + p], keys + p * kKvTokens + slot + row);
  }
  for (int i = static_cast<int>(threadIdx.x); i < dim * count; i += kThreads) {
    const int row = i / dim;
    const int p = i % dim;
    Store(from_values[row * args.values_stride + p], values + (slot + row) * dim + p);
  }
}

}  // namespace

int LaunchAppendKv(const CudaAppendKvArgs& args, void* stream) {
  if (args.kv.num_spans <= 0 || args.kv.max_span_rows <= 0) {
    return 0;
  }
  if (args.kv.kv_heads <= 0 || args.kv.head_dim <= 0 || args.kv.kv_heads > 65535 ||
      args.kv.num_spans > 65535) {
    return kBadSizes;
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.kv.max_span_rows + kKvTokens - 1, kKvTokens)),
                  static_cast<unsigned>(args.kv.kv_heads), static_cast<unsigned>(args.kv.num_spans));
  switch (args.kv.dtype) {
    case CudaDType::kF32:
      AppendKernel<float><<<grid, kThreads, 0, AsStream(stream)>>>(args);
      break;
    case CudaDType::kF16:
      AppendKernel<__half><<<grid, kThreads, 0, AsStream(stream)>>>(args);
      break;
    case CudaDType::kBf16:
      return kBadSizes;
  }
  return cudaGetLastError();
}

}  // namespace comoe::kernels
