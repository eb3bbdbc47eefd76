// One matrix of the expert FFN over the rows of each work: what LaunchExpertFfn (expert_ffn.cu) is made of.
#pragma once

#include <cstdint>

#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/cuda/row_terms.h"

namespace comoe::kernels {

// y[r, n] = sum_k x[r, k] w[n, k], with the weights in the panels of tensor/packed_matrix.h `offset` bytes
// into each work's blob; or with `swiglu` y[r, f] = silu(gate) * up of interleaved panels.
struct ExpertJob {
  const CudaExpertWork* work = nullptr;
  int num_work = 0;
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* grouped = nullptr;  // rows of x, or nullptr: a work's rows are those of x
  std::int64_t offset = 0;
  std::int64_t panel_bytes = 0;
  int panels = 0;
  int n = 0;  // outputs of y
  int k = 0;  // inputs
  bool swiglu = false;
  bool vectors = false;  // rows of x are aligned to 8 bytes
  float* y = nullptr;
  std::int64_t y_stride = 0;
  int few_rows = 0;
};

// Works with 1 .. few_rows rows, BF16; few_rows is at most kCudaFewRows.
int LaunchExpertFew(const ExpertJob& job, CudaPrecision precision, void* stream);
// Works with any number of rows, F32 or F16; reads the weights once for every 8 rows.
int LaunchExpertPlain(const ExpertJob& job, CudaDType dtype, void* stream);

}  // namespace comoe::kernels
