// A block makes 128 outputs of up to kRows rows. Weights are operand A, rows operand B. Tiles of 64 inputs
// come through a ring of shared memory by asynchronous copies; four warps, two by two, hold 64 outputs times
// half of the rows each in registers. Where rows are sums of three terms, all three are in the tile, and the
// sum of the first is kept apart from that of the others: weights are read once, and what is small is added
// together before it meets what is large. The order of a sum depends on nothing but the number of inputs.
//
// Grid: x outputs / 128, y tiles of rows of all works, up to 64 side by side. A work's weights
// are read once for every kRows rows of it, its rows once for every 128 outputs, mostly from the second-level
// cache.
#include "engine/kernels/cuda/tiles.cuh"

namespace comoe::kernels {
namespace {

constexpr int kThreads = 128;

template <int kRows, int kStages, int kTerms, TileJob::Weights kWeights>
__device__ __forceinline__ void RunTile(const TileJob& job, const RowTile& tile, char* ring) {
  using Loader = TileLoader<kRows, kTerms, kThreads, kWeights>;
  constexpr int kTiles = kRows / 16;         // of 8 rows, a warp
  constexpr int kSums = kTerms > 1 ? 2 : 1;  // the first term's and the others'
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_output = static_cast<int>(blockIdx.x) * kTileOutputs;
  const Loader loader(job, tile, first_output, SharedAddress(ring));

  const int steps = (job.k + kTileInputs - 1) / kTileInputs;
  const auto load = [&](int step) {
    if (step < steps) {
      loader.Load(step % kStages, step * kTileInputs, 0);
    }
    CopyAsyncCommit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    load(s);
  }

  const int warp_output = warp / 2 * 64;
  const int warp_row = warp % 2 * (kRows / 2);
  float sums[kSums][4][kTiles][4] = {};
  for (int step = 0; step < steps; ++step) {
    CopyAsyncWait<kStages - 2>();
    __syncthreads();  // the stage's copies by all threads are there, and all have left the one loaded next
    load(step + kStages - 1);
    const std::uint32_t a = loader.stage(step % kStages);
#pragma unroll
    for (int s = 0; s < kTileInputs / 16; ++s) {
      std::uint32_t weights[4][4];
      LoadWeights<4, 16, kWeights>(a, warp_output, s, lane, weights);
#pragma unroll
      for (int term = kTerms - 1; term >= 0; --term) {
        const std::uint32_t b = a + kWeightBytes + term * kRows * kRowBytes;
#pragma unroll
        for (int j = 0; j < kTiles; j += 2) {
          const int row = warp_row + j * 8 + lane / 16 * 8 + lane % 8;
          std::uint32_t x[4];
          LdMatrix::Load(b + RowChunk(row, s * 2 + lane / 8 % 2), x);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float(&to)[4][kTiles][4] = sums[term == 0 ? 0 : kSums - 1];
            Mma<Bf16Pair>(to[i][j], weights[i][0], weights[i][1], weights[i][2], weights[i][3], x[0], x[1]);
            Mma<Bf16Pair>(to[i][j + 1], weights[i][0], weights[i][1], weights[i][2], weights[i][3], x[2],
                          x[3]);
          }
        }
      }
    }
  }
  CopyAsyncWait<0>();
  if constexpr (kTerms > 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[0][i][j][c] += sums[1][i][j][c];
        }
      }
    }
  }
  StoreSums<4, 16, kTiles, kWeights>(job, sums[0], first_output + warp_output,
                                     tile.work.first_row + tile.first, warp_row, loader.rows(), lane);
}

template <int kRows, int kStages, int kTerms, TileJob::Weights kWeights>
__global__ void __launch_bounds__(kThreads, 2) TileKernel(const TileJob job) {
  extern __shared__ __align__(128) char ring[];
  for (int index = static_cast<int>(blockIdx.y);; index += static_cast<int>(gridDim.y)) {
    const RowTile tile = FindTile<kRows>(job, index);
    if (tile.first < 0) {
      return;
    }
    RunTile<kRows, kStages, kTerms, kWeights>(job, tile, ring);
    __syncthreads();  // nobody reads the ring any more
  }
}

// Tiles of rows that have blocks of their own; more are taken in turn. Bounds on rows are far above what
// there is where the device alone knows the routing, and a block that finds nothing costs time too.
constexpr unsigned kMostRowBlocks = 64;

template <int kRows, int kStages, int kTerms, TileJob::Weights kWeights>
int Launch(const TileJob& job, void* stream) {
  dim3 grid = TileGrid(job, kRows);
  if (grid.y == 0) {
    return 0;
  }
  grid.y = grid.y < kMostRowBlocks ? grid.y : kMostRowBlocks;
  constexpr std::size_t kShared =
      std::size_t{kStages} * TileLoader<kRows, kTerms, kThreads, kWeights>::kStageBytes;
  static_assert(kShared <= 99 * 1024, "sm_86, sm_89 and sm_120 have no more");
  auto* kernel = TileKernel<kRows, kStages, kTerms, kWeights>;
  if (const int error = AllowShared(kernel, kShared); error != 0) {
    return error;
  }
  kernel<<<grid, kThreads, kShared, AsStream(stream)>>>(job);
  return cudaGetLastError();
}

template <TileJob::Weights kWeights>
int LaunchFor(const TileJob& job, void* stream) {
  if (job.x.terms == 3) {
    return job.max_rows <= 32 ? Launch<32, 3, 3, kWeights>(job, stream)
                              : Launch<64, 2, 3, kWeights>(job, stream);
  }
  if (job.max_rows <= 32) {
    return Launch<32, 4, 1, kWeights>(job, stream);
  }
  if (job.max_rows <= 64) {
    return Launch<64, 4, 1, kWeights>(job, stream);
  }
  return Launch<128, 3, 1, kWeights>(job, stream);
}

int LaunchSm80(const TileJob& job, void* stream) {
  switch (job.weights) {
    case TileJob::Weights::kPanels:
      return LaunchFor<TileJob::Weights::kPanels>(job, stream);
    case TileJob::Weights::kSwigluPanels:
      return LaunchFor<TileJob::Weights::kSwigluPanels>(job, stream);
    case TileJob::Weights::kRows:
      return LaunchFor<TileJob::Weights::kRows>(job, stream);
  }
  return kBadSizes;
}

// Works with more rows than this go to the kernel for compute capability 9.0 where there is one.
constexpr int kSm80Rows = 64;

}  // namespace

int LaunchTiles(const TileJob& job, void* stream) {
  if (job.max_rows <= kSm80Rows || !HasSm90Tiles()) {
    return LaunchSm80(job, stream);
  }
  TileJob part = job;
  if (job.work != nullptr) {
    part.most_rows = kSm80Rows;
    part.max_rows = kSm80Rows;
    if (const int error = LaunchSm80(part, stream); error != 0) {
      return error;
    }
    part = job;
    part.few_rows = kSm80Rows;
  }
  return LaunchTilesSm90(part, stream);
}

}  // namespace comoe::kernels
