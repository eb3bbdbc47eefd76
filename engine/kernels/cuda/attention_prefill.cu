// Attention of prefill chunks on tensor cores. A block of threads takes 64 (row, head) pairs of one span and
// KV head, a warp 16 of them, and goes through the context in tiles of tokens that start at multiples of the
// tile, so that a row's sums do not depend on where its chunk begins. Keys and values of a tile are read once
// for all pairs: binary16 ones through two buffers filled by asynchronous copies, float32 ones as BF16 terms.
//
// Grid: x tiles of pairs, the last rows (the longest) first, y KV heads, z spans.
#include "engine/kernels/cuda/attention_parts.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kPairs = 16 * kWarps;

// Kinds of kernel: how many terms of queries and of keys and values, tokens of a tile, buffers.
template <int kHeadDim>
struct HalfExact {
  using Stored = __half;
  using Pair = HalfPair;
  static constexpr int kDim = kHeadDim, kQueryTerms = 2, kKvTerms = 1, kTokens = 64, kBuffers = 2;
};
template <int kHeadDim>
struct HalfRounded {
  using Stored = __half;
  using Pair = HalfPair;
  static constexpr int kDim = kHeadDim, kQueryTerms = 1, kKvTerms = 1, kTokens = 64, kBuffers = 2;
};
template <int kHeadDim>
struct FloatExact {
  using Stored = float;
  using Pair = Bf16Pair;
  static constexpr int kDim = kHeadDim, kQueryTerms = 3, kKvTerms = 3, kTokens = 32, kBuffers = 1;
};
template <int kHeadDim>
struct FloatRounded {
  using Stored = float;
  using Pair = Bf16Pair;
  static constexpr int kDim = kHeadDim, kQueryTerms = 1, kKvTerms = 1, kTokens = 64, kBuffers = 1;
};

template <class Kind>
struct Plan {
  using Tile =
      AttentionTile<typename Kind::Pair, Kind::kDim, Kind::kQueryTerms, Kind::kKvTerms, Kind::kTokens>;
  static constexpr int kQueryBytes = kWarps * Kind::kQueryTerms * Tile::kQueryPlane;
  static constexpr int kHalfBytes = Kind::kKvTerms * Tile::kKvPlane;  // keys, or values
  static constexpr std::size_t kBytes = kQueryBytes + Kind::kBuffers * 2 * kHalfBytes;
  static_assert(kBytes <= 97 * 1024, "sm_86, sm_89 and sm_120 have 99 KB");
};

// Tokens [token0, + kTokens) of keys and values to a buffer; zeros for blocks outside [first_block,
// last_block].
template <class Kind>
__device__ __forceinline__ void LoadTile(const CudaKv& kv, const std::int32_t* blocks, int kv_head,
                                         int token0, int first_block, int last_block, char* buffer) {
  constexpr int kChunksPerBlock = Kind::kDim * 2;  // of eight elements, of keys or values
  using Tile = typename Plan<Kind>::Tile;
  for (int i = static_cast<int>(threadIdx.x); i < Kind::kTokens / kKvTokens * kChunksPerBlock;
       i += kThreads) {
    const int b = i / kChunksPerBlock;
    const int chunk = i % kChunksPerBlock;
    const int block = token0 / kKvTokens + b;
    const bool valid = block >= first_block && block <= last_block;
    const auto* keys = KvHead<typename Kind::Stored>(kv, valid ? blocks[block] : 0, kv_head);
    const auto* values = keys + Kind::kDim * kKvTokens;
    char* key_to = buffer + b * Kind::kDim * 32 + KeyChunk(chunk / 2, chunk % 2);
    char* value_to =
        buffer + Plan<Kind>::kHalfBytes +
        RowChunkOf<Kind::kDim>(b * kKvTokens + chunk / (Kind::kDim / 8), chunk % (Kind::kDim / 8));
    if constexpr (sizeof(typename Kind::Stored) == 2) {
      CopyAsync16(SharedAddress(key_to), keys + chunk * 8, valid);
      CopyAsync16(SharedAddress(value_to), values + chunk * 8, valid);
    } else {
      float4 v[4] = {};
      if (valid) {
        v[0] = reinterpret_cast<const float4*>(keys + chunk * 8)[0];
        v[1] = reinterpret_cast<const float4*>(keys + chunk * 8)[1];
        v[2] = reinterpret_cast<const float4*>(values + chunk * 8)[0];
        v[3] = reinterpret_cast<const float4*>(values + chunk * 8)[1];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t words[4][Kind::kKvTerms];
        SplitPair<Bf16Pair, Kind::kKvTerms>(v[2 * half].x, v[2 * half].y, words[0]);
        SplitPair<Bf16Pair, Kind::kKvTerms>(v[2 * half].z, v[2 * half].w, words[1]);
        SplitPair<Bf16Pair, Kind::kKvTerms>(v[2 * half + 1].x, v[2 * half + 1].y, words[2]);
        SplitPair<Bf16Pair, Kind::kKvTerms>(v[2 * half + 1].z, v[2 * half + 1].w, words[3]);
        char* to = half == 0 ? key_to : value_to;
#pragma unroll
        for (int a = 0; a < Kind::kKvTerms; ++a) {
          *reinterpret_cast<uint4*>(to + a * Tile::kKvPlane) =
              make_uint4(words[0][a], words[1][a], words[2][a], words[3][a]);
        }
      }
    }
  }
  CopyAsyncCommit();
}

// Whether a word of two 16-bit floats holds an infinity or a NaN.
template <class Pair>
__device__ __forceinline__ bool HasNonFinite(std::uint32_t word) {
  constexpr std::uint32_t kExponent = __is_same(Pair, HalfPair) ? 0x7c00 : 0x7f80;
  return (word & kExponent) == kExponent || (word >> 16 & kExponent) == kExponent;
}

// Where rows of a tile differ in what counts, a value that is not finite would reach rows it does not count
// for (0 * NaN). It becomes zero, and its token is marked. Two threads a token, or four.
template <class Kind>
__device__ __forceinline__ void MarkNonFinite(char* values, int* marked) {
  constexpr int kShare = kThreads / Kind::kTokens;
  const int token = static_cast<int>(threadIdx.x) / kShare;
  bool bad = false;
  for (int c = static_cast<int>(threadIdx.x) % kShare; c < Kind::kDim / 8; c += kShare) {
    const auto v = *reinterpret_cast<const uint4*>(values + RowChunkOf<Kind::kDim>(token, c));
    bad = bad || HasNonFinite<typename Kind::Pair>(v.x) || HasNonFinite<typename Kind::Pair>(v.y) ||
          HasNonFinite<typename Kind::Pair>(v.z) || HasNonFinite<typename Kind::Pair>(v.w);
  }
#pragma unroll
  for (int step = 1; step < kShare; step *= 2) {
    bad = __shfl_xor_sync(kFullWarp, bad ? 1 : 0, step) != 0 || bad;
  }
  if (threadIdx.x % kShare == 0) {
    marked[token] = bad ? 1 : 0;
  }
  if (bad) {
    for (int a = 0; a < Kind::kKvTerms; ++a) {
      for (int c = static_cast<int>(threadIdx.x) % kShare; c < Kind::kDim / 8; c += kShare) {
        *reinterpret_cast<uint4*>(values + a * Plan<Kind>::Tile::kKvPlane +
                                  RowChunkOf<Kind::kDim>(token, c)) = make_uint4(0, 0, 0, 0);
      }
    }
  }
}

template <class Kind>
__global__ void __launch_bounds__(kThreads, 2) PrefillKernel(const CudaAttentionArgs args) {
  using Tile = typename Plan<Kind>::Tile;
  constexpr int kDim = Kind::kDim;
  constexpr int kTokens = Kind::kTokens;
  constexpr int kHalfBytes = Plan<Kind>::kHalfBytes;
  extern __shared__ __align__(128) char shared[];
  __shared__ float scales[kPairs];
  __shared__ int marked[kTokens];

  const CudaSpan span = args.kv.spans[blockIdx.z];
  const auto kv_head = static_cast<int>(blockIdx.y);
  const int per_kv_head = static_cast<int>(args.heads / args.kv.kv_heads);
  const int pairs = span.num_rows * per_kv_head;
  const int pair0 = (static_cast<int>(gridDim.x - blockIdx.x) - 1) * kPairs;
  if (pair0 >= pairs) {
    return;
  }
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const auto warp = static_cast<int>(threadIdx.x / kWarpSize);
  const int window = static_cast<int>(args.window);
  // Positions of the first and last row, and what counts for any.
  const int low = span.start_position + pair0 / per_kv_head;
  const int high = span.start_position + (min(pair0 + kPairs, pairs) - 1) / per_kv_head;
  const int first = window == 0 ? 0 : max(0, low - window + 1);
  const int first_block = first / kKvTokens;
  const int last_block = high / kKvTokens;
  const std::int32_t* blocks = args.kv.blocks + span.first_block;
  char* buffers = shared + Plan<Kind>::kQueryBytes;
  const int token_begin = first / kTokens * kTokens;
  const auto load = [&](int token0, int buffer) {
    LoadTile<Kind>(args.kv, blocks, kv_head, token0, first_block, last_block,
                   buffers + buffer * 2 * kHalfBytes);
  };
  if constexpr (Kind::kBuffers == 2) {
    load(token_begin, 0);
  }

  char* planes = shared + warp * Kind::kQueryTerms * Tile::kQueryPlane;
  for (int row = 0; row < 16; ++row) {
    const int pair = pair0 + warp * 16 + row;
    const float* query = nullptr;
    if (pair < pairs) {
      query = args.queries + (span.first_row + pair / per_kv_head) * args.queries_stride +
              (kv_head * per_kv_head + pair % per_kv_head) * kDim;
    }
    const float undo =
        StoreQuery<typename Kind::Pair, kDim, Kind::kQueryTerms>(query, planes, Tile::kQueryPlane, row, lane);
    if (lane == 0) {
      scales[warp * 16 + row] = undo * args.scale * kLog2E;
    }
  }
  __syncwarp();  // the warp's queries and scales are there

  const int group = lane / 4;
  int position[2];
  float scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pair = min(pair0 + warp * 16 + group + 8 * h, pairs - 1);
    position[h] = span.start_position + pair / per_kv_head;
    scale[h] = scales[warp * 16 + group + 8 * h];
  }
  float out[kDim / 8][4] = {};
  SoftmaxState state;
  int buffer = 0;
  for (int token0 = token_begin; token0 <= high; token0 += kTokens) {
    if constexpr (Kind::kBuffers == 2) {
      if (token0 + kTokens <= high) {
        load(token0 + kTokens, buffer ^ 1);
      } else {
        CopyAsyncCommit();
      }
      CopyAsyncWait<1>();
    } else {
      load(token0, 0);
    }
    __syncthreads();  // the tile is there
    char* tile = buffers + buffer * 2 * kHalfBytes;
    const bool edge = token0 + kTokens - 1 > low || (window != 0 && token0 < high - window + 1);
    if (edge) {
      MarkNonFinite<Kind>(tile + kHalfBytes, marked);
      __syncthreads();  // marks and zeros are there
    }
    float scores[kTokens / 8][4];
    Tile::Scores(SharedAddress(planes), SharedAddress(tile), lane, scores);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[j][c] *= scale[c / 2];
      }
    }
    if (edge) {
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int i = j * 8 + lane % 4 * 2 + c % 2;
          const int age = position[c / 2] - token0 - i;
          const bool counts = age >= 0 && (window == 0 || age < window);
          scores[j][c] = !counts ? -INFINITY : marked[i] != 0 ? NAN : scores[j][c];
        }
      }
    }
    SoftmaxStep(scores, state, out);
    Tile::Values(scores, SharedAddress(tile + kHalfBytes), lane, out);
    __syncthreads();  // everyone has left the tile and the marks
    if constexpr (Kind::kBuffers == 2) {
      buffer ^= 1;
    }
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const int pair = pair0 + warp * 16 + group + 8 * h;
    if (pair < pairs) {
      float* to = args.out + (span.first_row + pair / per_kv_head) * args.out_stride +
                  (kv_head * per_kv_head + pair % per_kv_head) * kDim + lane % 4 * 2;
      const float inverse = 1.0F / sum;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        to[j * 8] = out[j][2 * h] * inverse;
        to[j * 8 + 1] = out[j][2 * h + 1] * inverse;
      }
    }
  }
}

template <class Kind>
int Launch(const CudaAttentionArgs& args, void* stream) {
  const std::int64_t pairs = args.kv.max_span_rows * (args.heads / args.kv.kv_heads);
  const dim3 grid(static_cast<unsigned>(CeilDiv(pairs, kPairs)), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(args.kv.num_spans));
  auto* kernel = PrefillKernel<Kind>;
  if (const int error = AllowShared(kernel, Plan<Kind>::kBytes); error != 0) {
    return error;
  }
  kernel<<<grid, kThreads, Plan<Kind>::kBytes, AsStream(stream)>>>(args);
  return cudaGetLastError();
}

template <int kDim>
int LaunchForDim(const CudaAttentionArgs& args, void* stream) {
  const bool exact = args.precision == CudaPrecision::kExact;
  if (args.kv.dtype == CudaDType::kF16) {
    return exact ? Launch<HalfExact<kDim>>(args, stream) : Launch<HalfRounded<kDim>>(args, stream);
  }
  return exact ? Launch<FloatExact<kDim>>(args, stream) : Launch<FloatRounded<kDim>>(args, stream);
}

}  // namespace

int LaunchAttentionPrefill(const CudaAttentionArgs& args, void* stream) {
  if (args.kv.num_spans <= 0 || args.kv.max_span_rows <= 0) {
    return 0;
  }
  if (args.kv.kv_heads <= 0 || args.heads <= 0 || args.heads % args.kv.kv_heads != 0 ||
      args.kv.kv_heads > 65535 || args.kv.num_spans > 65535 || args.kv.head_dim <= 0 || args.window < 0 ||
      args.window > INT32_MAX / 2 || args.kv.dtype == CudaDType::kBf16) {
    return kBadSizes;
  }
  if (!Aligned16(args.kv.data)) {
    return LaunchAttentionPlain(args, stream);
  }
  if (args.kv.head_dim == 64) {
    return LaunchForDim<64>(args, stream);
  }
  if (args.kv.head_dim == 128) {
    return LaunchForDim<128>(args, stream);
  }
  return LaunchAttentionPlain(args, stream);
}

}  // namespace comoe::kernels
