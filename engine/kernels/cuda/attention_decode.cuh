// What the decode kernels share: how a row's context is cut into pieces, the ring through which a warp's
// blocks come, and how the warps' and the pieces' results are put together.
//
// A block of threads takes one piece of one row's context for the query heads of one KV head: keys and values
// are read once for all of them. Its warps take the piece's KV blocks in turn, each with a running maximum of
// its own. Pieces are numbered from the first block that counts and their length depends on the row's
// position and window alone (CudaDecodePiece); warps, then pieces, are added in order.
#pragma once

#include "engine/kernels/cuda/attention_parts.cuh"

namespace comoe::kernels {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kDecodeThreads = kDecodeWarps * kWarpSize;

// CudaDecodePiece for device code.
__host__ __device__ constexpr int PieceTokens(int length) {
  return length <= 256 ? 64 : length <= 768 ? 128 : length <= 16384 ? 256 : 512;
}
static_assert(PieceTokens(256) == CudaDecodePiece(256) && PieceTokens(257) == CudaDecodePiece(257));
static_assert(PieceTokens(768) == CudaDecodePiece(768) && PieceTokens(769) == CudaDecodePiece(769));
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
        shared_(shared) {
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
        CopyAsync16(to + place(loaded_ % 2, chunk), from + chunk * 16);
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
  std::int32_t id_ = 0;
  int loaded_ = 0;
  int used_ = 0;
};

// Puts the warps' results together: `maxima`, `sums` [4][kHeads] and `outs` [4][kHeads][kDim] in shared
// memory, complete; maxima become the warps' factors. Heads [head0, head0 + heads) are written, to `out` when
// the row has one piece, else to its partial.
template <int kHeads, int kDim>
__device__ __forceinline__ void FinishPiece(const CudaAttentionArgs& args, const DecodePiece& piece,
                                            int piece_idx, int most_pieces, int head0, int heads,
                                            float* maxima, float* sums, const float* outs) {
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
    sums[h] = sum;
    if (piece.pieces > 1) {
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
      const float sum = sums[h];
      to[0] = out.x / sum;
      to[1] = out.y / sum;
      to[2] = out.z / sum;
      to[3] = out.w / sum;
    } else {
      *reinterpret_cast<float4*>(DecodePartial(args, piece.slot, head0 + h, piece_idx, most_pieces) + p) =
          out;
    }
  }
}

// The launches of attention_decode_half.cu and attention_decode_float.cu: P 64 or 128.
int LaunchDecodeHalf(const CudaAttentionArgs& args, int most_pieces, void* stream);
int LaunchDecodeFloat(const CudaAttentionArgs& args, int most_pieces, void* stream);

}  // namespace comoe::kernels
