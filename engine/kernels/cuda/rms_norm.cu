// Root-mean-square norm of whole rows (with the addition to the residual stream before it) and of heads (with
// the rotary embedding after it).
//
// A row is read once, kept in registers, and written once: with an addition 2 reads and 2 writes an element,
// otherwise 1 and 1. Threads a row depend on its width alone, so the order of its sum does too.
#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"

namespace comoe::kernels {
namespace {

constexpr int kMaxVectors = 4;  // float4 a thread keeps

// Sum over a block of up to 1024 threads, in a fixed order. Ends with every thread knowing it.
__device__ float BlockSum(float x, float* warp_sums) {
  x = WarpSum(x);
  const unsigned warps = blockDim.x / kWarpSize;
  if (warps == 1) {
    return x;
  }
  if (threadIdx.x % kWarpSize == 0) {
    warp_sums[threadIdx.x / kWarpSize] = x;
  }
  __syncthreads();  // the warps' sums are there
  float sum = 0;
  for (unsigned w = 0; w < warps; ++w) {
    sum += warp_sums[w];
  }
  return sum;
}

// One block a row, width a multiple of 4, at most 4 * kMaxVectors elements a thread.
template <bool kAdd>
__global__ void RowNormKernel(const CudaRmsNormArgs args) {
  __shared__ float warp_sums[kWarpSize];
  const std::int64_t t = blockIdx.x;
  const auto vectors = static_cast<int>(args.width / 4);
  const auto* x = reinterpret_cast<const float4*>(args.x + t * args.x_stride);
  const auto* add = reinterpret_cast<const float4*>(args.add + t * args.add_stride);
  float4 kept[kMaxVectors];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const auto at = static_cast<int>(threadIdx.x + i * blockDim.x);
    kept[i] = at < vectors ? x[at] : make_float4(0, 0, 0, 0);
    if constexpr (kAdd) {
      if (at < vectors) {
        const float4 b = add[at];
        kept[i] = make_float4(kept[i].x + b.x, kept[i].y + b.y, kept[i].z + b.z, kept[i].w + b.w);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    squares += kept[i].x * kept[i].x + kept[i].y * kept[i].y + kept[i].z * kept[i].z + kept[i].w * kept[i].w;
  }
  const float mean = BlockSum(squares, warp_sums) / static_cast<float>(args.width);
  const float inverse = 1.0F / sqrtf(mean + args.epsilon);
  const auto* weight = reinterpret_cast<const float4*>(args.weight);
  auto* sum = reinterpret_cast<float4*>(args.sum + t * args.sum_stride);
  auto* y = reinterpret_cast<float4*>(args.y + t * args.y_stride);
  auto* mapped = reinterpret_cast<float4*>(args.mapped_y + t * args.mapped_y_stride);
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const auto at = static_cast<int>(threadIdx.x + i * blockDim.x);
    if (at < vectors) {
      const float4 a = kept[i];
      const float4 w = weight[at];
      if constexpr (kAdd) {
        sum[at] = a;
      }
      const float4 normed =
          make_float4(a.x * inverse * w.x, a.y * inverse * w.y, a.z * inverse * w.z, a.w * inverse * w.w);
      y[at] = normed;
      if (args.mapped_y != nullptr) {
        mapped[at] = normed;
      }
    }
  }
}

// Any width and alignment: one block a part of a row, which it reads twice.
__global__ void PlainNormKernel(const CudaRmsNormArgs args) {
  __shared__ float warp_sums[kWarpSize];
  const std::int64_t t = blockIdx.x / args.groups;
  const std::int64_t offset = blockIdx.x % args.groups * args.width;
  const float* x = args.x + t * args.x_stride + offset;
  float* y = args.y + t * args.y_stride + offset;
  float squares = 0;
  for (std::int64_t i = threadIdx.x; i < args.width; i += blockDim.x) {
    float a = x[i];
    if (args.add != nullptr) {
      a += args.add[t * args.add_stride + i];
      args.sum[t * args.sum_stride + i] = a;
    }
    squares += a * a;
  }
  const float mean = BlockSum(squares, warp_sums) / static_cast<float>(args.width);
  const float inverse = 1.0F / sqrtf(mean + args.epsilon);
  const float* from = args.add != nullptr ? args.sum + t * args.sum_stride : x;
  for (std::int64_t i = threadIdx.x; i < args.width; i += blockDim.x) {
    const float normed = from[i] * inverse * args.weight[i];  // each thread reads what it wrote
    y[i] = normed;
    if (args.mapped_y != nullptr) {
      args.mapped_y[t * args.mapped_y_stride + i] = normed;
    }
  }
}

constexpr int kHeadThreads = 128;
constexpr int kMaxHalf = 256 / kWarpSize;  // pairs a lane keeps

// One warp takes kItems heads of a row, which share its cosines and sines: lane l holds pairs (i, i + P/2)
// for i = l, l + 32, ... of each.
template <int kPairs, int kItems>
__global__ void HeadsKernel(const CudaHeadsArgs args) {
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * (kHeadThreads / kWarpSize) + threadIdx.x / kWarpSize;
  const std::int64_t warps_per_row = (args.heads + kItems - 1) / kItems;
  const std::int64_t t = warp / warps_per_row;
  if (t >= args.rows) {
    return;
  }
  const std::int64_t first_head = warp % warps_per_row * kItems;
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const auto half = static_cast<int>(args.head_dim / 2);
  float* row = args.x + t * args.x_stride + first_head * args.head_dim;
  float low[kItems][kPairs];
  float high[kItems][kPairs];
#pragma unroll
  for (int n = 0; n < kItems; ++n) {
    const bool there = first_head + n < args.heads;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      low[n][j] = there && i < half ? row[n * args.head_dim + i] : 0;
      high[n][j] = there && i < half ? row[n * args.head_dim + i + half] : 0;
    }
  }
  float cos[kPairs];
  float sin[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int i = lane + j * kWarpSize;
    const bool turned = args.cos != nullptr && i < half;
    cos[j] = turned ? args.cos[t * args.cos_stride + i] : 1;
    sin[j] = turned ? args.sin[t * args.sin_stride + i] : 0;
  }
#pragma unroll
  for (int n = 0; n < kItems; ++n) {
    if (first_head + n >= args.heads) {
      return;
    }
    const float* weight = first_head + n < args.first_heads ? args.weight : args.second_weight;
    if (weight != nullptr) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        squares += low[n][j] * low[n][j] + high[n][j] * high[n][j];
      }
      const float mean = WarpSum(squares) / static_cast<float>(args.head_dim);
      const float inverse = 1.0F / sqrtf(mean + args.epsilon);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int i = lane + j * kWarpSize;
        if (i < half) {
          low[n][j] = low[n][j] * inverse * weight[i];
          high[n][j] = high[n][j] * inverse * weight[i + half];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      if (i < half) {
        float a = low[n][j];
        float b = high[n][j];
        if (args.cos != nullptr) {
          a = low[n][j] * cos[j] - high[n][j] * sin[j];
          b = high[n][j] * cos[j] + low[n][j] * sin[j];
        }
        row[n * args.head_dim + i] = a;
        row[n * args.head_dim + i + half] = b;
      }
    }
  }
}

// Threads for a row of `vectors` float4: up to four of them a thread, in whole warps.
unsigned RowThreads(std::int64_t vectors) {
  const std::int64_t threads = CeilDiv(CeilDiv(vectors, kMaxVectors), kWarpSize) * kWarpSize;
  // Rows that fit a small block take one vector or two a thread: more loads in flight for a lone row.
  const std::int64_t wide = CeilDiv(vectors, kWarpSize) * kWarpSize;
  return static_cast<unsigned>(wide <= 256 ? wide : threads < 256 ? 256 : threads);
}

}  // namespace

int LaunchRmsNorm(const CudaRmsNormArgs& args, void* stream) {
  if (args.rows <= 0) {
    return 0;
  }
  const bool add = args.add != nullptr;
  if (args.width <= 0 || args.groups <= 0 || (add && (args.groups != 1 || args.sum == nullptr)) ||
      (args.mapped_y != nullptr && args.groups != 1) || args.rows * args.groups > INT32_MAX) {
    return kBadSizes;
  }
  const bool vectors =
      args.groups == 1 && args.width % 4 == 0 && args.width <= 4 * kMaxVectors * 1024 &&
      VectorRows(args.x, args.x_stride) && VectorRows(args.y, args.y_stride) && Aligned16(args.weight) &&
      (!add || (VectorRows(args.add, args.add_stride) && VectorRows(args.sum, args.sum_stride))) &&
      (args.mapped_y == nullptr || VectorRows(args.mapped_y, args.mapped_y_stride));
  if (vectors) {
    const unsigned threads = RowThreads(args.width / 4);
    const auto blocks = static_cast<unsigned>(args.rows);
    if (add) {
      RowNormKernel<true><<<blocks, threads, 0, AsStream(stream)>>>(args);
    } else {
      RowNormKernel<false><<<blocks, threads, 0, AsStream(stream)>>>(args);
    }
    return cudaGetLastError();
  }
  if (args.groups > 1 && args.width % 2 == 0 && args.width <= 2 * kMaxHalf * kWarpSize && args.x == args.y &&
      args.x_stride == args.y_stride) {
    CudaHeadsArgs heads;
    heads.x = args.y;
    heads.x_stride = args.y_stride;
    heads.rows = args.rows;
    heads.heads = heads.first_heads = args.groups;
    heads.head_dim = args.width;
    heads.weight = args.weight;
    heads.epsilon = args.epsilon;
    return LaunchHeads(heads, stream);
  }
  const std::int64_t threads = CeilDiv(args.width, kWarpSize) * kWarpSize;
  PlainNormKernel<<<static_cast<unsigned>(args.rows * args.groups),
                    static_cast<unsigned>(threads < 512 ? threads : 512), 0, AsStream(stream)>>>(args);
  return cudaGetLastError();
}

int LaunchHeads(const CudaHeadsArgs& args, void* stream) {
  const std::int64_t items = args.rows * args.heads;
  if (items <= 0) {
    return 0;
  }
  if (args.head_dim <= 0 || args.head_dim % 2 != 0 || args.head_dim > 2 * kMaxHalf * kWarpSize ||
      (args.cos == nullptr) != (args.sin == nullptr)) {
    return kBadSizes;
  }
  // Four heads a warp where there are more than the device has room for warps at once, or so.
  const int each = items > 16384 ? 4 : 1;
  const auto blocks =
      static_cast<unsigned>(CeilDiv(args.rows * CeilDiv(args.heads, each), kHeadThreads / kWarpSize));
  const auto run = [&](auto* kernel) {
    kernel<<<blocks, kHeadThreads, 0, AsStream(stream)>>>(args);
    return static_cast<int>(cudaGetLastError());
  };
  const std::int64_t pairs = CeilDiv(args.head_dim / 2, kWarpSize);
  if (pairs == 1) {
    return each == 4 ? run(HeadsKernel<1, 4>) : run(HeadsKernel<1, 1>);
  }
  if (pairs == 2) {
    return each == 4 ? run(HeadsKernel<2, 4>) : run(HeadsKernel<2, 1>);
  }
  return each == 4 ? run(HeadsKernel<kMaxHalf, 4>) : run(HeadsKernel<kMaxHalf, 1>);
}

}  // namespace comoe::kernels
