// Products of many rows with BF16 weights on tensor cores, in tiles: of experts' panels, and of dense
// matrices.
#pragma once

#include <cstdint>

#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/cuda/row_terms.h"

namespace comoe::kernels {

// y[r, n] = sum_k x[r, k] w[n, k] (+ bias[n]) for the rows of each work with more than `few_rows` and at most
// `most_rows`; x as terms, the row of a work's r-th being grouped[first_row + r], or first_row + r without
// it.
struct TileJob {
  enum class Weights { kPanels, kSwigluPanels, kRows };
  Weights weights = Weights::kPanels;
  const CudaExpertWork* work = nullptr;  // [num_work], or nullptr: `single`
  int num_work = 0;
  CudaExpertWork single;
  int few_rows = 0;
  int most_rows = INT32_MAX;
  std::int64_t max_rows = 0;    // of a work: a bound
  std::int64_t total_rows = 0;  // a bound
  std::int64_t offset = 0;      // of the matrix in a blob, bytes
  std::int64_t panel_bytes = 0;
  int panels = 0;
  int n = 0;       // outputs as stored in y
  int k = 0;       // inputs, as the weights hold them: even; kRows: a multiple of 8
  RowTerms x;      // columns from x_cols on count as zero
  int x_cols = 0;  // a multiple of 8
  const std::int32_t* grouped = nullptr;
  const float* bias = nullptr;
  float* y = nullptr;  // or, with kSwigluPanels, only terms:
  std::int64_t y_stride = 0;
  RowTerms y_terms;
};

// Which kernel a work's rows go to depends on its own number of rows alone.
int LaunchTiles(const TileJob& job, void* stream);

}  // namespace comoe::kernels
