// Activations times a packed weight matrix. Rules for every op stand in ops.h.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// y[t, n] = sum_k x[t, k] w[n, k] + bias[n]. The sum of an output runs over even inputs and over odd inputs,
// each in order with one fused multiply-add an input (a product and a sum where the processor has none); then
// even + odd. So say the reference loops and the CPU's kernels; a GPU's sum in an order of their own, which
// may differ with the number of rows.
struct MatMulArgs {
  tensor::TensorView x;          // [T, K]
  tensor::PackedMatrixView w;    // [N, K]
  absl::Span<const float> bias;  // [N], or empty
  tensor::TensorView y;          // [T, N]
};
absl::Status MatMul(const KernelTable& table, const MatMulArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
