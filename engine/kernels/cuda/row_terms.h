// Activations as BF16 terms, for kernels that read them in tiles.
#pragma once

#include <cstdint>

#include "engine/kernels/cuda/cuda_launch.h"

namespace comoe::kernels {

// A matrix of rows, each `terms` runs of `padded` BF16 columns: the sum of a row's runs is the row, the first
// the row rounded to BF16, each of the others what the ones before left. Aligned to 16 bytes.
struct RowTerms {
  void* data = nullptr;
  std::int64_t padded = 0;  // a multiple of kCudaTermColumns
  std::int64_t terms = 0;

  static RowTerms Make(void* data, std::int64_t cols, CudaPrecision precision) {
    return {data, (cols + kCudaTermColumns - 1) / kCudaTermColumns * kCudaTermColumns, CudaTerms(precision)};
  }
};

// out row r = x row rows[r] (or r, without `rows`); columns from `cols` on are zero. Negative rows are left.
int LaunchRowTerms(const float* x, std::int64_t x_stride, const std::int32_t* rows, std::int64_t num_rows,
                   std::int64_t cols, const RowTerms& out, void* stream);

}  // namespace comoe::kernels
