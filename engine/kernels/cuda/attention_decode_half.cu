// Decode attention over binary16 keys and values: tensor cores, so that the arithmetic of up to 16 query
// heads a KV head stays below the time of reading. Queries are scaled to binary16 by a power of two, in one
// or two terms; more than 16 heads a KV head take several blocks of threads. Bytes: keys and values once.
#include "engine/kernels/cuda/attention_decode.cuh"

namespace comoe::kernels {
namespace {

constexpr int kHeads = 16;
constexpr int kRingBytes =
    16 * 1024;  // a warp: three blocks fit a multiprocessor of sm_90, one of sm_86 and sm_120

template <int kDim, int kTerms>
__global__ void __launch_bounds__(kDecodeThreads, 3)
    HalfKernel(const CudaAttentionArgs args, int most_pieces, bool clustered) {
  using Tile = AttentionTile<HalfPair, kDim, kTerms, 1, kKvTokens>;
  constexpr int kHalfBytes = kDim * kKvTokens * 2;
  constexpr int kDepth = kRingBytes / kHalfBytes;
  static_assert(kDecodeWarps * kHeads * kDim * 4 <= kDecodeWarps * kRingBytes,
                "results take the ring's place");
  extern __shared__ __align__(128) char shared[];
  __shared__ float maxima[kDecodeWarps * kHeads];
  __shared__ float sums[kDecodeWarps * kHeads];
  __shared__ float scales[kHeads];

  const auto piece_idx = static_cast<int>(blockIdx.x);
  const DecodePiece piece = DecodePiece::Of(args, static_cast<int>(blockIdx.z), piece_idx);
  if (piece.row < 0) {
    return;
  }
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const auto warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int per_kv_head = static_cast<int>(args.heads / args.kv.kv_heads);
  const int parts = (per_kv_head + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / parts;
  const int head_in_group = static_cast<int>(blockIdx.y) % parts * kHeads;
  const int heads = min(kHeads, per_kv_head - head_in_group);
  const int head0 = kv_head * per_kv_head + head_in_group;

  // Keys in half 0, values in half 1.
  const auto place = [](int half, int chunk) {
    return half == 0 ? KeyChunk(chunk / 2, chunk % 2)
                     : RowChunkOf<kDim>(chunk / (kDim / 8), chunk % (kDim / 8));
  };
  char* query_planes = shared + kDecodeWarps * kRingBytes;
  HalfRing<kHalfBytes, kDepth> ring(args.kv, piece, kv_head, warp, lane,
                                    SharedAddress(shared + warp * kRingBytes));
  ring.Start(place);

  for (int h = warp; h < kHeads; h += kDecodeWarps) {
    const float* query =
        h < heads ? args.queries + piece.row * args.queries_stride + (head0 + h) * kDim : nullptr;
    const float undo = StoreQuery<HalfPair, kDim, kTerms>(query, query_planes, Tile::kQueryPlane, h, lane);
    if (lane == 0) {
      scales[h] = undo * args.scale * kLog2E;
    }
  }
  __syncthreads();  // all queries are there

  const int group = lane / 4;
  const float scale[2] = {scales[group], scales[group + 8]};
  float out[kDim / 8][4] = {};
  SoftmaxState state;
  for (int i = 0; i < ring.blocks(); ++i) {
    const std::uint32_t keys = ring.Next(place);
    float scores[2][4];
    Tile::Scores(SharedAddress(query_planes), keys, lane, scores);
    const int token0 = (piece.first_block + warp + i * kDecodeWarps) * kKvTokens;
    const bool edge = token0 < piece.first || token0 + kKvTokens - 1 > piece.position;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int token = token0 + j * 8 + lane % 4 * 2 + c % 2;
        scores[j][c] *= scale[c / 2];
        if (edge && (token < piece.first || token > piece.position)) {
          scores[j][c] = -INFINITY;
        }
      }
    }
    SoftmaxStep(scores, state, out);
    const std::uint32_t values = ring.Next(place);
    if (edge) {
      // What does not count may be NaN, which a weight of zero does not undo.
      for (int chunk = lane; chunk < kHalfBytes / 16; chunk += kWarpSize) {
        const int token = token0 + chunk / (kDim / 8);
        if (token < piece.first || token > piece.position) {
          asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(values + place(1, chunk)), "r"(0)
                       : "memory");
        }
      }
      __syncwarp();  // zeros are there for all lanes
    }
    Tile::Values(scores, values, lane, out);
  }
  CopyAsyncWait<0>();
  __syncthreads();  // nobody reads the ring any more

  auto* outs = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const int row = warp * kHeads + group + 8 * h;
    if (lane % 4 == 0) {
      maxima[row] = state.maximum[h];
      sums[row] = sum;
    }
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(outs + row * kDim + j * 8 + lane % 4 * 2) =
          make_float2(out[j][2 * h], out[j][2 * h + 1]);
    }
  }
  __syncthreads();  // all warps' results are there
  FinishPiece<kHeads, kDim>(args, piece, piece_idx, most_pieces, clustered, head0, heads, maxima, sums, outs);
}

template <int kDim, int kTerms>
int Launch(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream) {
  const std::int64_t parts = CeilDiv(args.heads / args.kv.kv_heads, kHeads);
  const dim3 grid(static_cast<unsigned>(most_pieces), static_cast<unsigned>(args.kv.kv_heads * parts),
                  static_cast<unsigned>(args.kv.num_spans * args.kv.max_span_rows));
  constexpr std::size_t kBytes =
      std::size_t{kDecodeWarps} * kRingBytes + std::size_t{kTerms} * kHeads * kDim * 2;
  return LaunchPieces(HalfKernel<kDim, kTerms>, grid, kBytes, args, clustered, stream);
}

}  // namespace

int LaunchDecodeHalf(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream) {
  const bool exact = args.precision == CudaPrecision::kExact;
  if (args.kv.head_dim == 64) {
    return exact ? Launch<64, 2>(args, most_pieces, clustered, stream)
                 : Launch<64, 1>(args, most_pieces, clustered, stream);
  }
  return exact ? Launch<128, 2>(args, most_pieces, clustered, stream)
               : Launch<128, 1>(args, most_pieces, clustered, stream);
}

}  // namespace comoe::kernels
