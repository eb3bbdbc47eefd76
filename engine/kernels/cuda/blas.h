// cuBLAS for dense products of many rows, found at run time: a machine without it runs our own tiles.
#pragma once

#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/cuda/row_terms.h"

namespace comoe::kernels {

// y = sum over terms of x w^T, + bias: one product a term, the smallest first, into one float32 matrix. Which
// algorithm cuBLAS takes may depend on the number of rows.
int BlasMatMul(const CudaMatMulArgs& args, const RowTerms& x, void* stream);

}  // namespace comoe::kernels
