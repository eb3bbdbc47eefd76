#include "engine/kernels/cuda/attention_decode.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kSumWarps = 4;

// Adds the pieces of a row's head in order, one warp a head. Grid: x kSumWarps heads, y rows. Bytes: P + 2
// floats a piece, P a result.
template <int kDim>
__global__ void __launch_bounds__(kSumWarps* kWarpSize)
    SumPiecesKernel(const CudaAttentionArgs args, int most_pieces) {
  constexpr int kOwn = kDim / kWarpSize;
  struct alignas(kOwn * 4) Own {
    float v[kOwn];
  };
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const int head = static_cast<int>(blockIdx.x * kSumWarps + threadIdx.x / kWarpSize);
  if (head >= args.heads) {
    return;
  }
  const DecodePiece piece = DecodePiece::Of(args, static_cast<int>(blockIdx.y), 0);
  if (piece.row < 0 || piece.pieces == 1) {
    return;
  }
  constexpr int kStride = kDim + 4;
  const float* partial = DecodePartial(args, piece.slot, head, 0, most_pieces);
  float maximum = -INFINITY;
  for (int i = lane; i < piece.pieces; i += kWarpSize) {
    maximum = fmaxf(maximum, partial[i * kStride + kDim]);
  }
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) {
    maximum = fmaxf(maximum, __shfl_xor_sync(kFullWarp, maximum, step));
  }
  const float base = maximum == -INFINITY ? 0.0F : maximum;
  float sum = 0;
  float out[kOwn] = {};
  for (int first = 0; first < piece.pieces; first += kWarpSize) {
    const int count = min(kWarpSize, piece.pieces - first);
    float factor = 0;
    float piece_sum = 0;
    if (lane < count) {
      const float* from = partial + (first + lane) * kStride + kDim;
      factor = exp2f(from[0] - base);
      piece_sum = from[1];
    }
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
      const Own own = *reinterpret_cast<const Own*>(partial + (first + i) * kStride + lane * kOwn);
      const float weight = __shfl_sync(kFullWarp, factor, i);
      AddPieceSum(sum, weight, __shfl_sync(kFullWarp, piece_sum, i));
#pragma unroll
      for (int p = 0; p < kOwn; ++p) {
        AddPiece(out[p], weight, own.v[p]);
      }
    }
  }
  float* to = args.out + piece.row * args.out_stride + head * kDim + lane * kOwn;
#pragma unroll
  for (int p = 0; p < kOwn; ++p) {
    to[p] = out[p] / sum;
  }
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
  // Without a window, contexts begin with a block.
  const std::int64_t most_pieces = CudaDecodePieces(length, args.window == 0 ? 0 : kKvTokens - 1);
  if (most_pieces > 1 &&
      (args.workspace == nullptr ||
       args.workspace_bytes < CudaAttentionWorkspaceBytes(slots, args.heads, args.kv.head_dim, length))) {
    return kBadSizes;
  }
  bool clustered = false;
  const int error = args.kv.dtype == CudaDType::kF16
                        ? LaunchDecodeHalf(args, static_cast<int>(most_pieces), clustered, stream)
                        : LaunchDecodeFloat(args, static_cast<int>(most_pieces), clustered, stream);
  if (error != 0 || most_pieces == 1 || clustered) {
    return error;
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.heads, kSumWarps)), static_cast<unsigned>(slots));
  auto* kernel = args.kv.head_dim == 64 ? SumPiecesKernel<64> : SumPiecesKernel<128>;
  kernel<<<grid, kSumWarps * kWarpSize, 0, AsStream(stream)>>>(args, static_cast<int>(most_pieces));
  return cudaGetLastError();
}

}  // namespace comoe::kernels
