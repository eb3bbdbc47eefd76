#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/row_terms.h"

namespace comoe::kernels {
namespace {

constexpr int kThreads = 256;

// One thread eight columns of a row; 4 bytes an element are read, 2 a term written.
template <int kTerms>
__global__ void RowTermsKernel(const float* x, std::int64_t x_stride, const std::int32_t* rows,
                               std::int64_t num_rows, std::int64_t cols, RowTerms out, bool vectors) {
  const std::int64_t units = out.padded / 8;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t r = item / units;
  if (r >= num_rows) {
    return;
  }
  const std::int64_t c = item % units * 8;
  const std::int64_t row = rows == nullptr ? r : rows[r];
  if (row < 0) {
    return;
  }
  const float* from = x + row * x_stride + c;
  float v[8];
  if (vectors && c + 8 <= cols) {
    *reinterpret_cast<float4*>(v) = reinterpret_cast<const float4*>(from)[0];
    *reinterpret_cast<float4*>(v + 4) = reinterpret_cast<const float4*>(from)[1];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = c + i < cols ? from[i] : 0;
    }
  }
  std::uint32_t words[4][kTerms];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    SplitPair<Bf16Pair, kTerms>(v[2 * i], v[2 * i + 1], words[i]);
  }
  auto* to = static_cast<__nv_bfloat16*>(out.data) + r * kTerms * out.padded + c;
#pragma unroll
  for (int i = 0; i < kTerms; ++i) {
    *reinterpret_cast<uint4*>(to + i * out.padded) =
        make_uint4(words[0][i], words[1][i], words[2][i], words[3][i]);
  }
}

}  // namespace

int LaunchRowTerms(const float* x, std::int64_t x_stride, const std::int32_t* rows, std::int64_t num_rows,
                   std::int64_t cols, const RowTerms& out, void* stream) {
  if (num_rows <= 0) {
    return 0;
  }
  const std::int64_t blocks = CeilDiv(num_rows * (out.padded / 8), kThreads);
  if (blocks > INT32_MAX) {
    return kBadSizes;
  }
  const bool vectors = VectorRows(x, x_stride);
  if (out.terms == 3) {
    RowTermsKernel<3><<<static_cast<unsigned>(blocks), kThreads, 0, AsStream(stream)>>>(
        x, x_stride, rows, num_rows, cols, out, vectors);
  } else {
    RowTermsKernel<1><<<static_cast<unsigned>(blocks), kThreads, 0, AsStream(stream)>>>(
        x, x_stride, rows, num_rows, cols, out, vectors);
  }
  return cudaGetLastError();
}

}  // namespace comoe::kernels
