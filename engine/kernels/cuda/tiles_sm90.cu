// Tiles for compute capability 9.0 (built for sm_90a alone): asynchronous tensor-core instructions of a warp
// group, weights from registers, rows from shared memory. As in tiles.cu otherwise, but that a block makes
// 128 outputs of 128 rows a warp group, and that terms of rows are gone through one after the other, the
// smallest first, into one sum.
//
// A step loads a stage's weights into registers, queues its eight instructions and waits for them; what
// covers the loads is the other warp group of the block, or the other block of the multiprocessor.
#include "engine/kernels/cuda/tiles.cuh"

namespace comoe::kernels {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kGroupRows = 128;
constexpr int kTiles = kGroupRows / 8;

// Where an instruction finds 128 rows of 16 inputs: rows of 128 bytes, chunks permuted over groups of eight
// rows (RowChunk), groups 1024 bytes apart. `shared` is a multiple of 1024, + 32 a k16 step.
__device__ __forceinline__ std::uint64_t RowsDescriptor(std::uint32_t shared) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kGroupStride = std::uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kGroupStride | std::uint64_t{1} << 16 | (shared & 0x3ffffU) >> 4;
}

// d += a b: 64 outputs (16 a warp) times 128 rows. Asynchronous: d and a are in use until waited for.
__device__ __forceinline__ void GroupMma(float (&d)[kTiles][4], const std::uint32_t (&a)[4],
                                         std::uint64_t rows) {
  asm volatile(
      "{\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;\n"
      "}\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
        "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),
        "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
        "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),
        "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),
        "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows));
}
__device__ __forceinline__ void GroupFence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void GroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void GroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses to sums that an instruction has in use.
__device__ __forceinline__ void Pin(float (&d)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      asm volatile("" : "+f"(d[j][c])::"memory");
    }
  }
}
// Orders what asynchronous copies wrote before what the tensor cores read.
__device__ __forceinline__ void SharedFence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int kGroups, int kStages, TileJob::Weights kWeights>
__global__ void __launch_bounds__(kGroups* kGroupThreads, kGroups == 1 ? 2 : 1)
    GroupKernel(const TileJob job) {
  extern __shared__ char unaligned_ring[];
  constexpr int kRows = kGroups * kGroupRows;
  constexpr int kThreads = kGroups * kGroupThreads;
  constexpr int kAhead = kStages - 1;  // stages on their way
  using Loader = TileLoader<kRows, 1, kThreads, kWeights>;
  const RowTile tile = FindTile<kRows>(job, static_cast<int>(blockIdx.y));
  if (tile.first < 0) {
    return;
  }
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_output = static_cast<int>(blockIdx.x) * kTileOutputs;
  const Loader loader(job, tile, first_output, (SharedAddress(unaligned_ring) + 1023U) & ~1023U);

  const int k_steps = (job.k + kTileInputs - 1) / kTileInputs;
  const int steps = k_steps * static_cast<int>(job.x.terms);
  int load_step = 0;
  int load_k = 0;
  int load_term = static_cast<int>(job.x.terms) - 1;
  const auto load = [&] {
    if (load_step < steps) {
      loader.Load(load_step % kStages, load_k, load_term);
      ++load_step;
      load_k += kTileInputs;
      if (load_k >= job.k) {
        load_k = 0;
        --load_term;
      }
    }
    CopyAsyncCommit();
  };
#pragma unroll
  for (int s = 0; s < kAhead; ++s) {
    load();
  }

  // In panels a warp's two instructions share two panels; in rows they are 64 outputs apart.
  constexpr bool kRowWeights = kWeights == TileJob::Weights::kRows;
  const int warp_output = warp * (kRowWeights ? 16 : 32);
  float sums[2][kTiles][4] = {};
  for (int step = 0; step < steps; ++step) {
    CopyAsyncWait<kAhead - 1>();
    SharedFence();
    __syncthreads();  // the stage is there for all, and all are done with the one loaded next
    const std::uint32_t a = loader.stage(step % kStages);
    const std::uint32_t b = a + kWeightBytes + group * kGroupRows * kRowBytes;
    std::uint32_t weights[kTileInputs / 16][2][4];
#pragma unroll
    for (int s = 0; s < kTileInputs / 16; ++s) {
      LoadWeights<2, 64, kWeights>(a, warp_output, s, lane, weights[s]);
    }
    Pin(sums[0]);
    Pin(sums[1]);
    GroupFence();
#pragma unroll
    for (int s = 0; s < kTileInputs / 16; ++s) {
      GroupMma(sums[0], weights[s][0], RowsDescriptor(b + s * 32));
      GroupMma(sums[1], weights[s][1], RowsDescriptor(b + s * 32));
    }
    GroupCommit();
    load();  // while the tensor cores work
    GroupWait<0>();
    Pin(sums[0]);
    Pin(sums[1]);
  }
  CopyAsyncWait<0>();
  StoreSums<2, 64, kTiles, kWeights>(job, sums, first_output + warp_output, tile.work.first_row + tile.first,
                                     group * kGroupRows, loader.rows(), lane);
}

template <int kGroups, int kStages, TileJob::Weights kWeights>
int Launch(const TileJob& job, void* stream) {
  constexpr int kRows = kGroups * kGroupRows;
  constexpr int kThreads = kGroups * kGroupThreads;
  const dim3 grid = TileGrid(job, kRows);
  if (grid.y == 0) {
    return 0;
  }
  constexpr std::size_t kShared =
      std::size_t{kStages} * TileLoader<kRows, 1, kThreads, kWeights>::kStageBytes + 1024;
  if (grid.y > 65535) {
    return kBadSizes;
  }
  auto* kernel = GroupKernel<kGroups, kStages, kWeights>;
  if (const int error = AllowShared(kernel, kShared); error != 0) {
    return error;
  }
  kernel<<<grid, kThreads, kShared, AsStream(stream)>>>(job);
  return cudaGetLastError();
}

template <TileJob::Weights kWeights>
int LaunchFor(const TileJob& job, void* stream) {
  return job.max_rows <= kGroupRows ? Launch<1, 3, kWeights>(job, stream)
                                    : Launch<2, 4, kWeights>(job, stream);
}

}  // namespace

bool HasSm90Tiles() {
  int device = 0;
  int major = 0;
  int minor = 0;
  return cudaGetDevice(&device) == 0 &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == 0 &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == 0 && major == 9 &&
         minor == 0;
}

int LaunchTilesSm90(const TileJob& job, void* stream) {
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

}  // namespace comoe::kernels
