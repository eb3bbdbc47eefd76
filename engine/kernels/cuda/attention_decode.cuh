// What the decode kernels share: how a row's context is cut into pieces, the ring through which a warp's
// blocks come, and how the warps' and the pieces' results are put together.
//
// A block of threads takes one piece of one row's context for the query heads of one KV head: keys and values
// are read once for all of them. Its warps take the piece's KV blocks in turn, each with a running maximum of
// its own. Pieces are numbered from the first block that counts and their length depends on the row's
// position and window alone (CudaDecodePiece); warps, then pieces, are added in order.
//
// The pieces' results are added in one of two ways, to the same bits. Mostly they go to the workspace, which
// another kernel reads. Where all blocks run at once and thread block clusters exist (sm_90), a row's blocks
// are a cluster and read each other's shared memory: one launch less, 3 us of 13 for a lone row of 1,024
// positions. (For more blocks, clusters were measured to be up to 20 % slower: a multiprocessor's last places
// stay free.)
#pragma once

#include "engine/kernels/cuda/attention_parts.cuh"

namespace comoe::kernels {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * kWarpSize;
inline constexpr int kClusterPieces = 8;  // blocks that every device with clusters takes

// CudaDecodePiece for device code.
__host__ __device__ constexpr int PieceTokens(int length) {
  return length <= 256 ? 64 : length <= 512 ? 128 : length <= 16384 ? 256 : 512;
}
static_assert(PieceTokens(256) == CudaDecodePiece(256) && PieceTokens(257) == CudaDecodePiece(257));
static_assert(PieceTokens(512) == CudaDecodePiece(512) && PieceTokens(513) == CudaDecodePiece(513));
static_assert(PieceTokens(16384) == CudaDecodePiece(16384) && PieceTokens(16385) == CudaDecodePiece(16385));

// One row's piece.
struct DecodePiece {
  int row = -1;         // of queries and out; -1: nothing to do
  int slot = 0;         // of the workspace
  int position = 0;     // of the row
  int first = 0;        // position that counts
  int first_block = 0;  // of the piece
  int num_blocks = 0;
  int pieces = 0;                        // of the row
  const std::int32_t* blocks = nullptr;  // of the sequence

  static __device__ __forceinline__ DecodePiece Of(const CudaAttentionArgs& args, int slot, int piece) {
    DecodePiece result;
    const CudaSpan span = args.kv.spans[slot / args.kv.max_span_rows];
    const int r = slot % static_cast<int>(args.kv.max_span_rows);
    if (r >= span.num_rows) {
      return result;
    }
    result.slot = slot;
    result.position = span.start_position + r;
    result.first = args.window == 0 ? 0 : max(0, result.position - static_cast<int>(args.window) + 1);
    const auto piece_blocks = PieceTokens(result.position - result.first + 1) / kKvTokens;
    const int begin = result.first / kKvTokens;
    const int count = result.position / kKvTokens + 1 - begin;
    result.pieces = (count + piece_blocks - 1) / piece_blocks;
    if (piece >= result.pieces) {
      return result;
    }
    result.row = span.first_row + r;
    result.first_block = begin + piece * piece_blocks;
    result.num_blocks = min(piece_blocks, count - piece * piece_blocks);
    result.blocks = args.kv.blocks + span.first_block;
    return result;
  }
};

// Where pieces leave their results: o [P], maximum, sum, for each [slot][head][piece].
__device__ __forceinline__ float* DecodePartial(const CudaAttentionArgs& args, int slot, int head, int piece,
                                                int most_pieces) {
  return static_cast<float*>(args.workspace) +
         ((static_cast<std::int64_t>(slot) * args.heads + head) * most_pieces + piece) *
             (args.kv.head_dim + 4);
}

// The halves (keys, values, keys, ...) of this warp's blocks of a piece, kDepth of them on their way or in
// use, each kBytes in shared memory, with 16-byte chunks where Place(half, chunk) says.
template <int kBytes, int kDepth>
class HalfRing {
 public:
  __device__ __forceinline__ HalfRing(const CudaKv& kv, const DecodePiece& piece, int kv_head, int warp,
                                      int lane, std::uint32_t shared)
      : data_(static_cast<const char*>(kv.data) + static_cast<std::int64_t>(kv_head) * 2 * kBytes),
        block_bytes_(kv.kv_heads * 2 * kBytes),
        count_(2 * ((piece.num_blocks - warp + kDecodeWarps - 1) / kDecodeWarps)),
        lane_(lane),
        shared_(shared),
        policy_(ReadOncePolicy()) {
    // A piece has at most 32 blocks, so a warp at most 8: their ids are at hand.
    const int block = warp + lane * kDecodeWarps;
    id_ = block < piece.num_blocks ? piece.blocks[piece.first_block + block] : 0;
  }
  __device__ __forceinline__ int blocks() const { return count_ / 2; }

  // Starts copying the next half, if there is one.
  template <class Place>
  __device__ __forceinline__ void Load(const Place& place) {
    const int id = __shfl_sync(kFullWarp, id_, loaded_ / 2 % kWarpSize);
    if (loaded_ < count_) {
      const char* from = data_ + id * block_bytes_ + loaded_ % 2 * kBytes;
      const std::uint32_t to = shared_ + static_cast<std::uint32_t>(loaded_ % kDepth * kBytes);
#pragma unroll
      for (int i = 0; i < kBytes / 16 / kWarpSize; ++i) {
        const int chunk = lane_ + i * kWarpSize;
        CopyAsync16(to + place(loaded_ % 2, chunk), from + chunk * 16, policy_);
      }
    }
    CopyAsyncCommit();
    ++loaded_;
  }
  template <class Place>
  __device__ __forceinline__ void Start(const Place& place) {
#pragma unroll
    for (int i = 0; i < kDepth - 1; ++i) {
      Load(place);
    }
  }
  // The next half, in order; valid until the next call.
  template <class Place>
  __device__ __forceinline__ std::uint32_t Next(const Place& place) {
    CopyAsyncWait<kDepth - 2>();
    __syncwarp();  // the other lanes' copies are there too, and all have left the half that is loaded now
    Load(place);
    return shared_ + static_cast<std::uint32_t>(used_++ % kDepth * kBytes);
  }

 private:
  const char* data_;
  std::int64_t block_bytes_;
  int count_;
  int lane_;
  std::uint32_t shared_;
  std::uint64_t policy_;
  std::int32_t id_ = 0;
  int loaded_ = 0;
  int used_ = 0;
};

// ---- clusters: nothing on devices without them
// ----------------------------------------------------------------------------------------------------

// All threads of the cluster's blocks that have not exited; what they wrote to shared memory is visible.
__device__ __forceinline__ void ClusterBarrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#endif
}
// What block `rank` of the cluster has where this one has `p`, in shared memory.
__device__ __forceinline__ float4 LoadCluster4(const float* p, int rank) {
  float4 v = make_float4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
  std::uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(SharedAddress(p)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
#endif
  return v;
}
__device__ __forceinline__ float2 LoadCluster2(const float2* p, int rank) {
  float2 v = make_float2(0, 0);
#if __CUDA_ARCH__ >= 900
  std::uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(SharedAddress(p)), "r"(rank));
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
#endif
  return v;
}

// Adds one piece after another: the same arithmetic wherever pieces are added.
__device__ __forceinline__ void AddPieceSum(float& sum, float factor, float piece_sum) {
  sum = __fadd_rn(sum, __fmul_rn(factor, piece_sum));
}
__device__ __forceinline__ void AddPiece(float& out, float factor, float piece_out) {
  out = __fmaf_rn(factor, piece_out, out);
}

// Adds the cluster's pieces, `outs` [heads][kDim] and `ends` [heads] (maximum, sum) of each in its shared
// memory, to `out`. Every block takes a part of the dimensions.
template <int kDim>
__device__ __forceinline__ void SumCluster(const CudaAttentionArgs& args, const DecodePiece& piece,
                                           int piece_idx, int head0, int heads, const float2* ends,
                                           const float* outs) {
  ClusterBarrier();  // all blocks' results are there
  for (int i = static_cast<int>(threadIdx.x) * piece.pieces + piece_idx; i < heads * (kDim / 4);
       i += kDecodeThreads * piece.pieces) {
    const int h = i / (kDim / 4);
    const int p = i % (kDim / 4) * 4;
    float2 end[kClusterPieces];
    float4 v[kClusterPieces];
    float maximum = -INFINITY;
#pragma unroll
    for (int j = 0; j < kClusterPieces; ++j) {
      if (j < piece.pieces) {
        end[j] = LoadCluster2(ends + h, j);
        v[j] = LoadCluster4(outs + h * kDim + p, j);
        maximum = fmaxf(maximum, end[j].x);
      }
    }
    const float base = maximum == -INFINITY ? 0.0F : maximum;
    float sum = 0;
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int j = 0; j < kClusterPieces; ++j) {
      if (j < piece.pieces) {
        const float factor = exp2f(end[j].x - base);
        AddPieceSum(sum, factor, end[j].y);
        AddPiece(out.x, factor, v[j].x);
        AddPiece(out.y, factor, v[j].y);
        AddPiece(out.z, factor, v[j].z);
        AddPiece(out.w, factor, v[j].w);
      }
    }
    float* to = args.out + piece.row * args.out_stride + (head0 + h) * kDim + p;
    to[0] = out.x / sum;
    to[1] = out.y / sum;
    to[2] = out.z / sum;
    to[3] = out.w / sum;
  }
  ClusterBarrier();  // nobody reads this block's shared memory any more
}

// Puts the warps' results together: `maxima`, `sums` [4][kHeads] and `outs` [4][kHeads][kDim] in shared
// memory, complete; maxima become the warps' factors. Heads [head0, head0 + heads) are written, to `out` when
// the row has one piece or its blocks are a cluster, else to its partial.
template <int kHeads, int kDim>
__device__ __forceinline__ void FinishPiece(const CudaAttentionArgs& args, const DecodePiece& piece,
                                            int piece_idx, int most_pieces, bool clustered, int head0,
                                            int heads, float* maxima, float* sums, float* outs) {
  __shared__ float2 ends[kHeads];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < heads) {
    const int h = thread;
    float maximum = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      maximum = fmaxf(maximum, maxima[w * kHeads + h]);
    }
    const float base = maximum == -INFINITY ? 0.0F : maximum;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float factor = exp2f(maxima[w * kHeads + h] - base);
      maxima[w * kHeads + h] = factor;
      sum += factor * sums[w * kHeads + h];
    }
    ends[h] = make_float2(maximum, sum);
    if (piece.pieces > 1 && !clustered) {
      float* partial = DecodePartial(args, piece.slot, head0 + h, piece_idx, most_pieces);
      partial[kDim] = maximum;
      partial[kDim + 1] = sum;
    }
  }
  __syncthreads();  // factors and sums are there
  for (int i = thread; i < heads * (kDim / 4); i += kDecodeThreads) {
    const int h = i / (kDim / 4);
    const int p = i % (kDim / 4) * 4;
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float factor = maxima[w * kHeads + h];
      const float4 v = *reinterpret_cast<const float4*>(outs + (w * kHeads + h) * kDim + p);
      out.x += factor * v.x;
      out.y += factor * v.y;
      out.z += factor * v.z;
      out.w += factor * v.w;
    }
    if (piece.pieces == 1) {
      float* to = args.out + piece.row * args.out_stride + (head0 + h) * kDim + p;
      const float sum = ends[h].y;
      to[0] = out.x / sum;
      to[1] = out.y / sum;
      to[2] = out.z / sum;
      to[3] = out.w / sum;
    } else {
      float* to = clustered ? outs + h * kDim + p  // in the place of the first warp's, read above
                            : DecodePartial(args, piece.slot, head0 + h, piece_idx, most_pieces) + p;
      *reinterpret_cast<float4*>(to) = out;
    }
  }
  if (clustered && piece.pieces > 1) {
    SumCluster<kDim>(args, piece, piece_idx, head0, heads, ends, outs);
  }
}

// ---- launching
// ----------------------------------------------------------------------------------------------------

// Whether the blocks of `grid`, x pieces of a row, should and can be clusters.
template <class Kernel>
int ChooseClusters(Kernel* kernel, dim3 grid, bool& clustered) {
  clustered = false;
  if (grid.x == 1 || grid.x > static_cast<unsigned>(kClusterPieces)) {
    return 0;
  }
  int device = 0;
  int processors = 0;
  if (const int error = cudaGetDevice(&device); error != 0) {
    return error;
  }
  if (const int error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      error != 0) {
    return error;
  }
  if (std::int64_t{grid.x} * grid.y * grid.z > processors) {
    return 0;
  }
  cudaFuncAttributes attributes;
  if (const int error = cudaFuncGetAttributes(&attributes, kernel); error != 0) {
    return error;
  }
  clustered = attributes.ptxVersion >= 90;  // what the loaded code was compiled for
  return 0;
}

// Starts a decode kernel; `clustered` becomes whether it adds the pieces.
template <class Kernel>
int LaunchPieces(Kernel* kernel, dim3 grid, std::size_t shared_bytes, const CudaAttentionArgs& args,
                 bool& clustered, void* stream) {
  if (const int error = AllowShared(kernel, shared_bytes); error != 0) {
    return error;
  }
  if (const int error = ChooseClusters(kernel, grid, clustered); error != 0) {
    return error;
  }
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = grid.x;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(kDecodeThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = AsStream(stream);
  config.attrs = &cluster;
  config.numAttrs = clustered ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args, static_cast<int>(grid.x), clustered);
}

// The launches of attention_decode_half.cu and attention_decode_float.cu: P 64 or 128.
// `clustered` becomes whether they have added the pieces.
int LaunchDecodeHalf(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream);
int LaunchDecodeFloat(const CudaAttentionArgs& args, int most_pieces, bool& clustered, void* stream);

}  // namespace comoe::kernels
