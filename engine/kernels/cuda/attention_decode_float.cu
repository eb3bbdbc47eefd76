// Decode attention over float32 keys and values, multiplied in float32: up to eight query heads a block of
// threads. For the scores a lane takes four tokens and every eighth dimension; the sums over lanes are
// exchanged so that each ends with the whole scores of one head; for the values a lane takes four dimensions.
// Bytes: keys and values once for every eight query heads of a KV head.
#include "engine/kernels/cuda/attention_decode.cuh"

namespace comoe::kernels {
namespace {

// Sums over lanes 4, 8 and 16 apart of the heads' scores: afterwards scores[0] is that of head OwnHead(lane).
template <int kHeads, int kStep = 16>
__device__ __forceinline__ void ScatterHeads(float (&scores)[kHeads][4], int lane) {
  if constexpr (kStep >= 4) {
    if constexpr (kHeads > 1) {
      float kept[kHeads / 2][4];
      const bool upper = (lane & kStep) != 0;
#pragma unroll
      for (int h = 0; h < kHeads / 2; ++h) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float send = upper ? scores[h][c] : scores[h + kHeads / 2][c];
          const float keep = upper ? scores[h + kHeads / 2][c] : scores[h][c];
          kept[h][c] = keep + __shfl_xor_sync(kFullWarp, send, kStep);
        }
      }
      ScatterHeads<kHeads / 2, kStep / 2>(kept, lane);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[0][c] = kept[0][c];
      }
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[0][c] += __shfl_xor_sync(kFullWarp, scores[0][c], kStep);
      }
      ScatterHeads<1, kStep / 2>(scores, lane);
    }
  }
}
template <int kHeads>
__device__ __forceinline__ int OwnHead(int lane) {
  return kHeads == 8   ? (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1)
         : kHeads == 4 ? (lane >> 4 & 1) * 2 + (lane >> 3 & 1)
         : kHeads == 2 ? lane >> 4 & 1
                       : 0;
}

// kHeads values behind each other in shared memory.
template <int kHeads>
__device__ __forceinline__ void LoadHeads(const float* from, float (&v)[kHeads]) {
  if constexpr (kHeads % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kHeads; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(from + i);
      v[i] = f.x;
      v[i + 1] = f.y;
      v[i + 2] = f.z;
      v[i + 3] = f.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      v[i] = from[i];
    }
  }
}

// Floats in shared memory besides the ring: queries, and each warp's weights and factors.
template <int kDim, int kHeads>
constexpr int kExtraFloats = kHeads* kDim + kDecodeWarps*(kKvTokens + 1) * kHeads;

template <int kDim, int kHeads, int kDepth>
__global__ void __launch_bounds__(kDecodeThreads, 2)
    FloatKernel(const CudaAttentionArgs args, int most_pieces, bool clustered) {
  constexpr int kHalfBytes = kDim * kKvTokens * 4;
  constexpr int kLanesPerToken = kDim / 4;
  constexpr int kTokensAtOnce = kWarpSize / kLanesPerToken;
  extern __shared__ __align__(128) char shared[];
  __shared__ float maxima[kDecodeWarps * kHeads];
  __shared__ float sums[kDecodeWarps * kHeads];

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

  const auto place = [](int /*half*/, int chunk) { return chunk * 16; };
  auto* queries = reinterpret_cast<float*>(shared + kDecodeWarps * kDepth * kHalfBytes);  // [P][kHeads]
  float* weights = queries + kHeads * kDim + warp * (kKvTokens + 1) * kHeads;             // [16][kHeads]
  float* factors = weights + kKvTokens * kHeads;                                          // [kHeads]
  HalfRing<kHalfBytes, kDepth> ring(args.kv, piece, kv_head, warp, lane,
                                    SharedAddress(shared + warp * kDepth * kHalfBytes));
  ring.Start(place);
  for (int i = static_cast<int>(threadIdx.x); i < kHeads * kDim; i += kDecodeThreads) {
    const int h = i / kDim;
    queries[i % kDim * kHeads + h] =
        h < heads ? args.queries[piece.row * args.queries_stride + head0 * kDim + i] * (args.scale * kLog2E)
                  : 0;
  }
  __syncthreads();  // all queries are there

  const int own = OwnHead<kHeads>(lane);
  float out[kHeads][4] = {};
  float maximum = -INFINITY;  // of head `own`
  float sum = 0;              // and of this lane's four tokens
  for (int i = 0; i < ring.blocks(); ++i) {
    const std::uint32_t keys = ring.Next(place);
    float scores[kHeads][4] = {};
#pragma unroll 8
    for (int step = 0; step < kDim / 8; ++step) {
      const int p = step * 8 + lane / 4;
      const uint4 bits = LoadShared16(keys + p * 64 + lane % 4 * 16);
      const float k[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                          __uint_as_float(bits.w)};
      float q[kHeads];
      LoadHeads(queries + p * kHeads, q);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          scores[h][c] = fmaf(q[h], k[c], scores[h][c]);
        }
      }
    }
    ScatterHeads(scores, lane);
    const int token0 = (piece.first_block + warp + i * kDecodeWarps) * kKvTokens;
    float raised = maximum;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int token = token0 + lane % 4 * 4 + c;
      scores[0][c] = token >= piece.first && token <= piece.position ? scores[0][c] : -INFINITY;
      raised = fmaxf(raised, scores[0][c]);
    }
    raised = fmaxf(raised, __shfl_xor_sync(kFullWarp, raised, 1));
    raised = fmaxf(raised, __shfl_xor_sync(kFullWarp, raised, 2));
    const float base = raised == -INFINITY ? 0.0F : raised;
    const float keep = exp2f(maximum - base);
    maximum = raised;
    sum *= keep;
    // Where several lanes have the same head's tokens, one writes them.
    const bool writes = kHeads == 8 || (lane & (kHeads == 4 ? 4 : kHeads == 2 ? 12 : 28)) == 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float weight = exp2f(scores[0][c] - base);
      sum += weight;
      if (writes) {
        weights[(lane % 4 * 4 + c) * kHeads + own] = weight;
      }
    }
    if (writes && lane % 4 == 0) {
      factors[own] = keep;
    }
    const std::uint32_t values = ring.Next(place);  // its barrier also makes the weights visible
    float factor[kHeads];
    LoadHeads(factors, factor);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        out[h][c] *= factor[h];
      }
    }
    // Tokens that do not count may be NaN: they are not looked at.
    const int from = max(piece.first - token0, 0);
    const int to = min(piece.position - token0, kKvTokens - 1);
#pragma unroll
    for (int step = 0; step < kKvTokens / kTokensAtOnce; ++step) {
      const int j = step * kTokensAtOnce + lane / kLanesPerToken;
      if (j >= from && j <= to) {
        const uint4 bits = LoadShared16(values + j * kDim * 4 + lane % kLanesPerToken * 16);
        const float v[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                            __uint_as_float(bits.w)};
        float w[kHeads];
        LoadHeads(weights + j * kHeads, w);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            out[h][c] = fmaf(w[h], v[c], out[h][c]);
          }
        }
      }
    }
    __syncwarp();  // all have read the weights that the next block overwrites
  }
  CopyAsyncWait<0>();
  __syncthreads();  // nobody reads the ring any more

  auto* outs = reinterpret_cast<float*>(shared);
  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  sum += __shfl_xor_sync(kFullWarp, sum, 2);
  const bool writes = kHeads == 8 || (lane & (kHeads == 4 ? 4 : kHeads == 2 ? 12 : 28)) == 0;
  if (writes && lane % 4 == 0) {
    maxima[warp * kHeads + own] = maximum;
    sums[warp * kHeads + own] = sum;
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if constexpr (kTokensAtOnce == 2) {
        out[h][c] += __shfl_xor_sync(kFullWarp, out[h][c], 16);
      }
    }
    if (lane < kLanesPerToken) {
      *reinterpret_cast<float4*>(outs + (warp * kHeads + h) * kDim + lane * 4) =
          make_float4(out[h][0], out[h][1], out[h][2], out[h][3]);
    }
  }
  __syncthreads();  // all warps' results are there
  FinishPiece<kHeads, kDim>(args, piece, piece_idx, most_pieces, clustered, head0, heads, maxima, sums, outs);
}

template <int kDim, int kHeads, int kDepth>
constexpr std::size_t kSharedBytes =
    std::size_t{kDecodeWarps} * kDepth* kDim* kKvTokens * 4 + kExtraFloats<kDim, kHeads> * 4;

template <int kDim, int kHeads, int kDepth>
int LaunchDepth(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream) {
  const std::int64_t parts = CeilDiv(args.heads / args.kv.kv_heads, kHeads);
  const dim3 grid(static_cast<unsigned>(most_pieces), static_cast<unsigned>(args.kv.kv_heads * parts),
                  static_cast<unsigned>(args.kv.num_spans * args.kv.max_span_rows));
  return LaunchPieces(FloatKernel<kDim, kHeads, kDepth>, grid, kSharedBytes<kDim, kHeads, kDepth>, args,
                      clustered, stream);
}

// As deep a ring as the device has shared memory for: 99 KB of sm_86, sm_89 and sm_120 take the shorter one.
template <int kDim, int kHeads>
int Launch(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream) {
  constexpr int kDepth = kDim == 64 ? 6 : 3;
  int device = 0;
  int limit = 0;
  if (const int error = cudaGetDevice(&device); error != 0) {
    return error;
  }
  if (const int error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
      error != 0) {
    return error;
  }
  if (kSharedBytes<kDim, kHeads, kDepth> <= static_cast<std::size_t>(limit)) {
    return LaunchDepth<kDim, kHeads, kDepth>(args, most_pieces, clustered, stream);
  }
  return LaunchDepth<kDim, kHeads, kDepth - 1>(args, most_pieces, clustered, stream);
}

template <int kDim>
int LaunchForHeads(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream) {
  const std::int64_t per_kv_head = args.heads / args.kv.kv_heads;
  if (per_kv_head == 1) {
    return Launch<kDim, 1>(args, most_pieces, clustered, stream);
  }
  if (per_kv_head == 2) {
    return Launch<kDim, 2>(args, most_pieces, clustered, stream);
  }
  if (per_kv_head <= 4) {
    return Launch<kDim, 4>(args, most_pieces, clustered, stream);
  }
  return Launch<kDim, 8>(args, most_pieces, clustered, stream);
}

}  // namespace

int LaunchDecodeFloat(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream) {
  return args.kv.head_dim == 64 ? LaunchForHeads<64>(args, most_pieces, clustered, stream)
                                : LaunchForHeads<128>(args, most_pieces, clustered, stream);
}

}  // namespace comoe::kernels
