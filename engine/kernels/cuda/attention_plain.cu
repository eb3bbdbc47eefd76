// Attention for any head dim up to 512 and either stored type: one warp a head of a row, float32 throughout,
// 16 tokens at a time in order.
#include "engine/kernels/cuda/attention_parts.cuh"

namespace comoe::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxDim = 512;
constexpr int kPerLane = kMaxDim / kWarpSize;

template <class T>
__global__ void __launch_bounds__(kWarps* kWarpSize) PlainKernel(const CudaAttentionArgs args) {
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int head = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x / kWarpSize);
  const CudaSpan span = args.kv.spans[blockIdx.z];
  const auto r = static_cast<int>(blockIdx.x);
  if (r >= span.num_rows || head >= args.heads) {
    return;
  }
  const auto dim = static_cast<int>(args.kv.head_dim);
  const int kv_head = head / static_cast<int>(args.heads / args.kv.kv_heads);
  const int position = span.start_position + r;
  const int first = args.window == 0 ? 0 : max(0, position - static_cast<int>(args.window) + 1);
  const float* query = args.queries + (span.first_row + r) * args.queries_stride + head * dim;
  const float scale = args.scale * kLog2E;
  float out[kPerLane] = {};
  float maximum = -INFINITY;
  float sum = 0;
  for (int block = first / kKvTokens; block <= position / kKvTokens; ++block) {
    const T* keys = KvHead<T>(args.kv, args.kv.blocks[span.first_block + block], kv_head);
    const T* values = keys + dim * kKvTokens;
    float score = 0;
    for (int p = lane / 16; p < dim; p += 2) {
      score += query[p] * ToFloat(keys[p * kKvTokens + lane % 16]);
    }
    score += __shfl_xor_sync(kFullWarp, score, 16);
    const int token = block * kKvTokens + lane % 16;
    const bool counts = token >= first && token <= position;
    score = counts ? score * scale : -INFINITY;
    float raised = fmaxf(maximum, score);
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
      raised = fmaxf(raised, __shfl_xor_sync(kFullWarp, raised, step));
    }
    const float base = raised == -INFINITY ? 0.0F : raised;
    const float keep = exp2f(maximum - base);
    const float weight = exp2f(score - base);
    maximum = raised;
    sum = sum * keep + WarpSum<16>(weight);
    const int from = max(first - block * kKvTokens, 0);
    const int to = min(position - block * kKvTokens, kKvTokens - 1);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      out[i] *= keep;
    }
    for (int j = from; j <= to; ++j) {
      const float w = __shfl_sync(kFullWarp, weight, j);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int p = i * kWarpSize + lane;
        if (p < dim) {
          out[i] += w * ToFloat(values[j * dim + p]);
        }
      }
    }
  }
  float* to = args.out + (span.first_row + r) * args.out_stride + head * dim;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int p = i * kWarpSize + lane;
    if (p < dim) {
      to[p] = out[i] / sum;
    }
  }
}

}  // namespace

int LaunchAttentionPlain(const CudaAttentionArgs& args, void* stream) {
  if (args.kv.head_dim > kMaxDim) {
    return kBadSizes;
  }
  const dim3 grid(static_cast<unsigned>(args.kv.max_span_rows),
                  static_cast<unsigned>(CeilDiv(args.heads, kWarps)),
                  static_cast<unsigned>(args.kv.num_spans));
  if (args.kv.dtype == CudaDType::kF16) {
    PlainKernel<__half><<<grid, kWarps * kWarpSize, 0, AsStream(stream)>>>(args);
  } else {
    PlainKernel<float><<<grid, kWarps * kWarpSize, 0, AsStream(stream)>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace comoe::kernels
