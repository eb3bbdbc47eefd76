// What the attention kernels share: where keys and values lie, and one tile of attention on tensor cores.
#pragma once

#include "engine/kernels/cuda/cuda_common.cuh"

namespace comoe::kernels {

inline constexpr int kKvTokens = 16;  // tensor::kKvBlockTokens

// Keys [P, 16] of a head in a block; its values [16, P] follow.
template <class T>
__device__ __forceinline__ T* KvHead(const CudaKv& kv, std::int32_t block, int head) {
  return static_cast<T*>(kv.data) +
         (static_cast<std::int64_t>(block) * kv.kv_heads + head) * 2 * kKvTokens * kv.head_dim;
}

// A plain kernel for what the fast ones do not take, one warp a head of a row.
int LaunchAttentionPlain(const CudaAttentionArgs& args, void* stream);

// ---- tiles in shared memory
// --------------------------------------------------------------------------------- 16-byte chunks of eight
// 16-bit elements, permuted so that the eight rows of a matrix lie in different banks.

// Of a block's keys [P][16]: chunk `half` (tokens 8 half, ...) of dimension p. Bytes.
__device__ __forceinline__ int KeyChunk(int p, int half) { return p * 32 + (half ^ (p >> 2 & 1)) * 16; }
// Of rows of P elements (values, queries), P 64 or more: chunk c of row r. Bytes.
template <int kDim>
__device__ __forceinline__ int RowChunkOf(int r, int c) {
  return r * kDim * 2 + (c ^ (r & 7)) * 16;
}

// A warp's 16 queries against kTokens keys, and the weights against the values. Both factors may be sums of
// terms in planes behind each other; products of terms that together are below the last are left out.
template <class Pair, int kDim, int kQueryTerms, int kKvTerms, int kTokens>
struct AttentionTile {
  static constexpr int kQueryPlane = 16 * kDim * 2;    // bytes
  static constexpr int kKvPlane = kTokens * kDim * 2;  // bytes
  static constexpr int kMost = kQueryTerms > kKvTerms ? kQueryTerms : kKvTerms;

  // scores[j]: C fragment of tokens 8 j, ... Keys: blocks of 16 tokens behind each other.
  static __device__ __forceinline__ void Scores(std::uint32_t queries, std::uint32_t keys, int lane,
                                                float (&scores)[kTokens / 8][4]) {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[j][c] = 0;
      }
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t q[kQueryTerms][4];
#pragma unroll
      for (int a = 0; a < kQueryTerms; ++a) {
        LdMatrix::Load(queries + a * kQueryPlane + RowChunkOf<kDim>(lane % 16, step * 2 + lane / 16), q[a]);
      }
#pragma unroll
      for (int block = 0; block < kTokens / 16; ++block) {
#pragma unroll
        for (int b = kKvTerms - 1; b >= 0; --b) {
          std::uint32_t k[4];
          LdMatrix::LoadTransposed(keys + b * kKvPlane + block * kDim * 32 +
                                       KeyChunk(step * 16 + lane / 8 % 2 * 8 + lane % 8, lane / 16),
                                   k);
#pragma unroll
          for (int a = kQueryTerms - 1; a >= 0; --a) {
            if (a + b < kMost) {
              Mma<Pair>(scores[2 * block], q[a][0], q[a][1], q[a][2], q[a][3], k[0], k[1]);
              Mma<Pair>(scores[2 * block + 1], q[a][0], q[a][1], q[a][2], q[a][3], k[2], k[3]);
            }
          }
        }
      }
    }
  }

  // out[j] += weights times values, C fragments of dimensions 8 j, ...
  static __device__ __forceinline__ void Values(const float (&weights)[kTokens / 8][4], std::uint32_t values,
                                                int lane, float (&out)[kDim / 8][4]) {
#pragma unroll
    for (int block = 0; block < kTokens / 16; ++block) {
      std::uint32_t w[4][kQueryTerms];
      SplitPair<Pair, kQueryTerms>(weights[2 * block][0], weights[2 * block][1], w[0]);
      SplitPair<Pair, kQueryTerms>(weights[2 * block][2], weights[2 * block][3], w[1]);
      SplitPair<Pair, kQueryTerms>(weights[2 * block + 1][0], weights[2 * block + 1][1], w[2]);
      SplitPair<Pair, kQueryTerms>(weights[2 * block + 1][2], weights[2 * block + 1][3], w[3]);
#pragma unroll
      for (int j = 0; j < kDim / 8; j += 2) {
#pragma unroll
        for (int b = kKvTerms - 1; b >= 0; --b) {
          std::uint32_t v[4];
          LdMatrix::LoadTransposed(
              values + b * kKvPlane +
                  RowChunkOf<kDim>(block * 16 + lane / 8 % 2 * 8 + lane % 8, j + lane / 16),
              v);
#pragma unroll
          for (int a = kQueryTerms - 1; a >= 0; --a) {
            if (a + b < kMost) {
              Mma<Pair>(out[j], w[0][a], w[1][a], w[2][a], w[3][a], v[0], v[1]);
              Mma<Pair>(out[j + 1], w[0][a], w[1][a], w[2][a], w[3][a], v[2], v[3]);
            }
          }
        }
      }
    }
  }
};

// 2^x for weights: x <= 0, so that results below the normal numbers may be 0.
__device__ __forceinline__ float WeightOf(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Online softmax of a warp's 16 rows: the running maximum (of scores in powers of two) and sum of rows group
// and group + 8.
struct SoftmaxState {
  float maximum[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0, 0};  // of this lane's tokens: summed over the four lanes of a row at the end
};

// Turns scores (masked ones -inf) into weights and scales `out` and the sums to the new maximum.
template <int kTiles, int kOutTiles>
__device__ __forceinline__ void SoftmaxStep(float (&scores)[kTiles][4], SoftmaxState& state,
                                            float (&out)[kOutTiles][4]) {
  float keep[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float maximum = state.maximum[h];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      maximum = fmaxf(maximum, fmaxf(scores[j][2 * h], scores[j][2 * h + 1]));
    }
    maximum = fmaxf(maximum, __shfl_xor_sync(kFullWarp, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(kFullWarp, maximum, 2));
    // Nothing has counted yet, or only NaN has: NaN scores stay NaN below.
    const float base = maximum == -INFINITY ? 0.0F : maximum;
    keep[h] = WeightOf(state.maximum[h] - base);
    state.maximum[h] = maximum;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      scores[j][2 * h] = WeightOf(scores[j][2 * h] - base);
      scores[j][2 * h + 1] = WeightOf(scores[j][2 * h + 1] - base);
      sum += scores[j][2 * h] + scores[j][2 * h + 1];
    }
    state.sum[h] = state.sum[h] * keep[h] + sum;
  }
  // Most steps find no higher maximum in any row: multiplying by 1 is left out.
  if (__any_sync(kFullWarp, !(keep[0] == 1.0F && keep[1] == 1.0F)) != 0) {
#pragma unroll
    for (int j = 0; j < kOutTiles; ++j) {
      out[j][0] *= keep[0];
      out[j][1] *= keep[0];
      out[j][2] *= keep[1];
      out[j][3] *= keep[1];
    }
  }
}

// One query [P] as terms in shared memory, row `row` of the planes; a null query is zeros. Whole warp. For
// binary16 the query is first multiplied by the power of two that takes its largest element to [1, 2);
// returns what undoes that.
template <class Pair, int kDim, int kTerms>
__device__ __forceinline__ float StoreQuery(const float* query, char* planes, int plane_bytes, int row,
                                            int lane) {
  float2 v[kDim / 64];
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) {
    const int p = i * 64 + lane * 2;
    v[i] = query == nullptr ? make_float2(0, 0) : make_float2(query[p], query[p + 1]);
    largest = fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
  }
  float undo = 1;
  if constexpr (sizeof(Pair) == sizeof(HalfPair) && __is_same(Pair, HalfPair)) {
    const unsigned exponent = __reduce_max_sync(kFullWarp, __float_as_uint(largest)) >> 23;
    if (exponent > 0 && exponent < 254) {
      undo = __uint_as_float(exponent << 23);
      const float scale = __uint_as_float((254 - exponent) << 23);
#pragma unroll
      for (int i = 0; i < kDim / 64; ++i) {
        v[i].x *= scale;
        v[i].y *= scale;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) {
    const int p = i * 64 + lane * 2;
    std::uint32_t words[kTerms];
    SplitPair<Pair, kTerms>(v[i].x, v[i].y, words);
#pragma unroll
    for (int a = 0; a < kTerms; ++a) {
      *reinterpret_cast<std::uint32_t*>(planes + a * plane_bytes + RowChunkOf<kDim>(row, p / 8) + p % 8 * 2) =
          words[a];
    }
  }
  return undo;
}

}  // namespace comoe::kernels
