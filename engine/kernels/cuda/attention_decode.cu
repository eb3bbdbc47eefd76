#include "engine/kernels/cuda/attention_decode.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kFactorsAtOnce = 128;

// Adds the pieces of a row's head in order. Grid: x heads, y rows; one thread a dimension, P of them. (Four
// threads a dimension were measured: 4 us less for a lone row of 64 pieces, but 10 to 30 us more for
// batches.)
__global__ void __launch_bounds__(128) SumPiecesKernel(const CudaAttentionArgs args, int most_pieces) {
  __shared__ float factors[kFactorsAtOnce];
  __shared__ float warp_sums[kFactorsAtOnce / kWarpSize];
  const auto head = static_cast<int>(blockIdx.x);
  const DecodePiece piece = DecodePiece::Of(args, static_cast<int>(blockIdx.y), 0);
  if (piece.row < 0 || piece.pieces == 1) {
    return;
  }
  const float* partial = DecodePartial(args, piece.slot, head, 0, most_pieces);
  const auto dim = static_cast<int>(args.kv.head_dim);
  const int stride = dim + 4;
  const auto p = static_cast<int>(threadIdx.x);
  const int lane = p % kWarpSize;
  // Every warp finds the same maximum.
  float maximum = -INFINITY;
  for (int i = lane; i < piece.pieces; i += kWarpSize) {
    maximum = fmaxf(maximum, partial[i * stride + dim]);
  }
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(kFullWarp, maximum, step));
  }
  const float base = maximum == -INFINITY ? 0.0F : maximum;
  float sum = 0;  // each thread's share of it
  float out = 0;
  for (int first = 0; first < piece.pieces; first += kFactorsAtOnce) {
    const int count = min(kFactorsAtOnce, piece.pieces - first);
    __syncthreads();  // everyone is done with the factors
    for (int i = p; i < count; i += dim) {
      const float* from = partial + (first + i) * stride + dim;
      const float factor = exp2f(from[0] - base);
      factors[i] = factor;
      sum += factor * from[1];
    }
    __syncthreads();  // the factors are there
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      out += factors[i] * partial[(first + i) * stride + p];
    }
  }
  sum = WarpSum(sum);
  if (lane == 0) {
    warp_sums[p / kWarpSize] = sum;
  }
  __syncthreads();  // the warps' sums are there
  sum = 0;
  for (int w = 0; w < dim / kWarpSize; ++w) {
    sum += warp_sums[w];
  }
  args.out[piece.row * args.out_stride + head * dim + p] = out / sum;
}

}  // namespace

int LaunchAttentionDecode(const CudaAttentionArgs& args, void* stream) {
  const std::int64_t slots = args.kv.num_spans * args.kv.max_span_rows;
  if (slots <= 0) {
    return 0;
  }
  const std::int64_t heads = args.kv.kv_heads;
  if (heads <= 0 || args.heads <= 0 || args.heads % heads != 0 || heads > 65535 || slots > 65535 ||
      args.kv.head_dim <= 0 || args.window < 0 || args.window > INT32_MAX / 2 || args.max_context <= 0 ||
      args.kv.dtype == CudaDType::kBf16) {
    return kBadSizes;
  }
  if ((args.kv.head_dim != 64 && args.kv.head_dim != 128) || !Aligned16(args.kv.data)) {
    return LaunchAttentionPlain(args, stream);
  }
  const std::int64_t length =
      args.window != 0 && args.window < args.max_context ? args.window : args.max_context;
  const std::int64_t most_pieces = CudaDecodePieces(length);
  if (most_pieces > 1 &&
      (args.workspace == nullptr ||
       args.workspace_bytes < CudaAttentionWorkspaceBytes(slots, args.heads, args.kv.head_dim, length))) {
    return kBadSizes;
  }
  const int error = args.kv.dtype == CudaDType::kF16
                        ? LaunchDecodeHalf(args, static_cast<int>(most_pieces), stream)
                        : LaunchDecodeFloat(args, static_cast<int>(most_pieces), stream);
  if (error != 0 || most_pieces == 1) {
    return error;
  }
  SumPiecesKernel<<<dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(slots)),
                    static_cast<unsigned>(args.kv.head_dim), 0, AsStream(stream)>>>(
      args, static_cast<int>(most_pieces));
  return cudaGetLastError();
}

}  // namespace comoe::kernels
