// What the kernels of tiles.cu and tiles_sm90.cu share: which rows a block computes, how a tile lies in
// shared memory and gets there, and how sums are written.
#pragma once

#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/tiles.h"

namespace comoe::kernels {

inline constexpr int kTileOutputs = 128;  // of a block
inline constexpr int kTileInputs = 64;    // of a stage
inline constexpr int kPanelTileBytes = kTileInputs * 16 * 2;
inline constexpr int kWeightBytes = kTileOutputs * kTileInputs * 2;  // of a stage
inline constexpr int kRowBytes = kTileInputs * 2;                    // of a row in a stage

// Which rows a block computes.
struct RowTile {
  CudaExpertWork work;
  int first = -1;  // within the work's rows; -1: nothing to do
};

// The `index`-th tile of kRows rows over all works that this kernel is for. Every warp finds the same.
template <int kRows>
__device__ __forceinline__ RowTile FindTile(const TileJob& job, int index) {
  RowTile tile;
  if (job.work == nullptr) {
    tile.work = job.single;
    tile.first = index * kRows < tile.work.num_rows ? index * kRows : -1;
    return tile;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int before = 0;
  for (int w = 0; w < job.num_work; w += kWarpSize) {
    const int rows = w + lane < job.num_work ? job.work[w + lane].num_rows : 0;
    const int tiles = rows > job.few_rows && rows <= job.most_rows ? (rows + kRows - 1) / kRows : 0;
    int upto = tiles;
#pragma unroll
    for (int step = 1; step < kWarpSize; step *= 2) {
      const int other = __shfl_up_sync(kFullWarp, upto, step);
      upto += lane >= step ? other : 0;
    }
    const unsigned found = __ballot_sync(kFullWarp, before + upto > index);
    if (found != 0) {
      const int owner = __ffs(static_cast<int>(found)) - 1;
      const int start = before + __shfl_sync(kFullWarp, upto - tiles, owner);
      tile.work = job.work[w + owner];
      tile.first = (index - start) * kRows;
      return tile;
    }
    before += __shfl_sync(kFullWarp, upto, kWarpSize - 1);
  }
  return tile;
}

// Byte offsets within a tile in shared memory. 16-byte chunks are permuted so that the eight lanes of a phase
// of a load always meet different banks.
__device__ __forceinline__ int PanelChunk(int pair, int quad) {
  return pair * 64 + (quad ^ ((pair >> 1 & 1) << 1)) * 16;
}
__device__ __forceinline__ int RowChunk(int row, int chunk) { return row * 128 + (chunk ^ (row & 7)) * 16; }

// Copies tiles to shared memory: weights, then kTerms planes of kRows rows. Every thread copies 16-byte
// chunks at equal distances, so that what a stage costs is an addition a chunk: where its first ones come
// from and go to, and which of them exist, is worked out once.
template <int kRows, int kTerms, int kThreads, TileJob::Weights kWeights>
class TileLoader {
 public:
  static constexpr int kStageBytes = kWeightBytes + kTerms * kRows * kRowBytes;

  __device__ __forceinline__ TileLoader(const TileJob& job, const RowTile& tile, int first_output,
                                        std::uint32_t shared)
      : shared_(shared), rows_(min(kRows, tile.work.num_rows - tile.first)) {
    const auto thread = static_cast<int>(threadIdx.x);
    const char* matrix = static_cast<const char*>(tile.work.blob) + job.offset;
    const int row = thread / 8;
    const int chunk = thread % 8;
    if constexpr (kWeights == TileJob::Weights::kRows) {
      weights_ = matrix + (static_cast<std::int64_t>(first_output + row) * job.k + chunk * 8) * 2;
      weights_step_ = static_cast<std::int64_t>(kThreads / 8) * job.k * 2;
      weights_limit_ = job.k - chunk * 8;
      weights_to_ = static_cast<std::uint32_t>(RowChunk(row, chunk));
      weights_mask_ = Mask<kWeightChunks>(first_output + row, kThreads / 8, job.n);
    } else {
      const int panel = thread / 128;
      const int pair = thread % 128 / 4;
      weights_ = matrix + (first_output / 16 + panel) * job.panel_bytes + pair * 64 + thread % 4 * 16;
      weights_step_ = kThreads / 128 * job.panel_bytes;
      weights_limit_ = job.k - pair * 2;
      weights_to_ = static_cast<std::uint32_t>(panel * kPanelTileBytes + PanelChunk(pair, thread % 4));
      weights_mask_ = Mask<kWeightChunks>(first_output / 16 + panel, kThreads / 128, job.panels);
    }
    const std::int64_t x_row = job.x.terms * job.x.padded * 2;
#pragma unroll
    for (int i = 0; i < kRowChunks; ++i) {
      const int r = row + i * (kThreads / 8);
      std::int64_t from = tile.work.first_row + tile.first + r;
      if (job.grouped != nullptr) {
        from = r < rows_ ? job.grouped[from] : 0;
      }
      x_[i] = static_cast<const char*>(job.x.data) + from * x_row + chunk * 16;
    }
    term_bytes_ = job.x.padded * 2;
    x_limit_ = job.x_cols - chunk * 8;
    x_to_ = static_cast<std::uint32_t>(kWeightBytes + RowChunk(row, chunk));
    x_mask_ = Mask<kRowChunks>(row, kThreads / 8, rows_);
    any_ = matrix;
  }

  // Of stage `slot`.
  __device__ __forceinline__ std::uint32_t stage(int slot) const {
    return shared_ + static_cast<std::uint32_t>(slot * kStageBytes);
  }
  __device__ __forceinline__ int rows() const { return rows_; }

  // Starts copying inputs [k0, k0 + 64), and of x terms `term`, + 1, ..., to stage `slot`.
  __device__ __forceinline__ void Load(int slot, int k0, int term) const {
    constexpr int kInputBytes = kWeights == TileJob::Weights::kRows ? 2 : 32;
    const std::uint32_t to = stage(slot);
    // Beyond the last input there are zeros. Outputs and rows that do not exist are left as they are: they
    // meet nothing else.
    const bool has_weights = k0 < weights_limit_;
    const char* from = has_weights ? weights_ + static_cast<std::int64_t>(k0) * kInputBytes : any_;
    const std::int64_t weights_step = has_weights ? weights_step_ : 0;
#pragma unroll
    for (int i = 0; i < kWeightChunks; ++i) {
      CopyAsync16If((weights_mask_ >> i & 1) != 0, to + weights_to_ + i * kThreads * 16, from,
                    has_weights ? 16 : 0);
      from += weights_step;
    }
    const bool has_x = k0 < x_limit_;
#pragma unroll
    for (int p = 0; p < kTerms; ++p) {
      const std::int64_t offset = has_x ? static_cast<std::int64_t>(k0) * 2 + (term + p) * term_bytes_ : 0;
#pragma unroll
      for (int i = 0; i < kRowChunks; ++i) {
        CopyAsync16If((x_mask_ >> i & 1) != 0, to + x_to_ + p * kRows * kRowBytes + i * kThreads * 16,
                      x_[i] + offset, has_x ? 16 : 0);
      }
    }
  }

 private:
  static constexpr int kWeightChunks = kWeightBytes / 16 / kThreads;
  static constexpr int kRowChunks = kRows * 8 / kThreads;
  static_assert(kThreads % 128 == 0 && kRowChunks * kThreads == kRows * 8);

  // Bit i: first + i * step < end.
  template <int kBits>
  static __device__ __forceinline__ std::uint32_t Mask(int first, int step, int end) {
    std::uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      mask |= first + i * step < end ? 1U << i : 0;
    }
    return mask;
  }

  std::uint32_t shared_;
  int rows_;
  const char* any_;  // an address that can be read
  const char* weights_;
  std::int64_t weights_step_;
  int weights_limit_;  // inputs k0 from which this thread's chunks do not exist
  std::uint32_t weights_to_;
  std::uint32_t weights_mask_;
  const char* x_[kRowChunks];
  std::int64_t term_bytes_;
  int x_limit_;
  std::uint32_t x_to_;
  std::uint32_t x_mask_;
};

// The A fragments of kInstructions instructions for k16 step `step` of a tile, from output `output` of it on.
// In panels, instruction 2 p + h holds, of lane group g, outputs 4 (g % 4) + 2 h and + 1 of panel 2 p + g /
// 4; in rows, outputs i * kStep + g and + 8.
template <int kInstructions, int kStep, TileJob::Weights kWeights>
__device__ __forceinline__ void LoadWeights(std::uint32_t a, int output, int step, int lane,
                                            std::uint32_t (&fragments)[kInstructions][4]) {
  if constexpr (kWeights == TileJob::Weights::kRows) {
#pragma unroll
    for (int i = 0; i < kInstructions; ++i) {
      LdMatrix::Load(a + RowChunk(output + i * kStep + lane % 16, step * 2 + lane / 16), fragments[i]);
    }
  } else {
    const int group = lane / 4;
    const int pair = step * 8 + lane % 4;
#pragma unroll
    for (int p = 0; p < kInstructions / 2; ++p) {
      const std::uint32_t panel = a + (output / 16 + 2 * p + group / 4) * kPanelTileBytes;
      const uint4 low = LoadShared16(panel + PanelChunk(pair, group % 4));
      const uint4 high = LoadShared16(panel + PanelChunk(pair + 4, group % 4));
      fragments[2 * p][0] = low.x;
      fragments[2 * p][1] = low.y;
      fragments[2 * p][2] = high.x;
      fragments[2 * p][3] = high.y;
      fragments[2 * p + 1][0] = low.z;
      fragments[2 * p + 1][1] = low.w;
      fragments[2 * p + 1][2] = high.z;
      fragments[2 * p + 1][3] = high.w;
    }
  }
}

// Four outputs of a row, f on, as terms.
__device__ __forceinline__ void StoreTerms(const RowTerms& y, std::int64_t row, int f, const float (&v)[4]) {
  auto* to = static_cast<__nv_bfloat16*>(y.data) + row * y.terms * y.padded + f;
  float rest[4] = {v[0], v[1], v[2], v[3]};
  for (int i = 0; i < y.terms; ++i) {
    uint2 words;
    words.x = Bf16Pair::Pack(rest[0], rest[1]);
    words.y = Bf16Pair::Pack(rest[2], rest[3]);
    *reinterpret_cast<uint2*>(to + i * y.padded) = words;
    rest[0] -= Bf16Pair::Low(words.x);
    rest[1] -= Bf16Pair::High(words.x);
    rest[2] -= Bf16Pair::Low(words.y);
    rest[3] -= Bf16Pair::High(words.y);
  }
}

// Writes a warp's sums of instructions i (16 outputs each, from `output` on) and tiles j of 8 rows. In rows,
// instruction i has outputs output + i * kStep, ...; in panels two instructions share two panels.
template <int kInstructions, int kStep, int kTiles, TileJob::Weights kWeights>
__device__ __forceinline__ void StoreSums(const TileJob& job, const float (&sums)[kInstructions][kTiles][4],
                                          int output, std::int64_t first_row, int row, int rows, int lane) {
  const int group = lane / 4;
  const int t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    if constexpr (kWeights == TileJob::Weights::kRows) {
#pragma unroll
      for (int i = 0; i < kInstructions; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int r = row + j * 8 + 2 * t + c % 2;
          const int n = output + i * kStep + group + c / 2 * 8;
          if (r < rows && n < job.n) {
            job.y[(first_row + r) * job.y_stride + n] =
                sums[i][j][c] + (job.bias == nullptr ? 0.0F : job.bias[n]);
          }
        }
      }
    } else if constexpr (kWeights == TileJob::Weights::kSwigluPanels) {
#pragma unroll
      for (int p = 0; p < kInstructions / 2; ++p) {
        // Lanes below 16 have the gates of both rows of a tile, the others the ups: each takes one row.
        const int odd = lane / 16;
        const int r = row + j * 8 + 2 * t + odd;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float even_row = sums[2 * p + i / 2][j][i % 2 * 2];
          const float odd_row = sums[2 * p + i / 2][j][i % 2 * 2 + 1];
          const float other = __shfl_xor_sync(kFullWarp, odd != 0 ? even_row : odd_row, 16);
          v[i] = odd != 0 ? Silu(other) * odd_row : Silu(even_row) * other;
        }
        const int f = (output / 32 + p) * 16 + group % 4 * 4;
        if (r < rows && f < job.n) {
          StoreTerms(job.y_terms, first_row + r, f, v);
        }
      }
    } else {
#pragma unroll
      for (int p = 0; p < kInstructions / 2; ++p) {
        const int n = output + (2 * p + group / 4) * 16 + group % 4 * 4;
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int r = row + j * 8 + 2 * t + odd;
          const float4 v = make_float4(sums[2 * p][j][odd], sums[2 * p][j][2 + odd], sums[2 * p + 1][j][odd],
                                       sums[2 * p + 1][j][2 + odd]);
          if (r < rows) {
            float* y = job.y + (first_row + r) * job.y_stride + n;
            if (n + 4 <= job.n && reinterpret_cast<std::uintptr_t>(y) % 16 == 0) {
              *reinterpret_cast<float4*>(y) = v;
            } else {
              const float values[4] = {v.x, v.y, v.z, v.w};
              for (int i = 0; i < 4 && n + i < job.n; ++i) {
                y[i] = values[i];
              }
            }
          }
        }
      }
    }
  }
}

// How many tiles of kRows rows there may be, and of outputs.
inline dim3 TileGrid(const TileJob& job, std::int64_t rows) {
  const std::int64_t outputs = job.weights == TileJob::Weights::kRows ? job.n : std::int64_t{16} * job.panels;
  std::int64_t tiles = CeilDiv(job.single.num_rows, rows);
  if (job.work != nullptr) {
    const std::int64_t works = job.total_rows / (job.few_rows + 1);
    tiles = job.total_rows / rows + (works < job.num_work ? works : job.num_work);
  }
  return {static_cast<unsigned>(CeilDiv(outputs, kTileOutputs)), static_cast<unsigned>(tiles)};
}

// The kernel for devices of compute capability 9.0, for many rows; false where it does not apply.
bool HasSm90Tiles();
int LaunchTilesSm90(const TileJob& job, void* stream);

}  // namespace comoe::kernels
