// The experts' results, weighted and added to the residual stream. Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// out[t] += sum over k in order of weights[t, k] * y[source[t * K + k]], then, when there is a shared expert,
// + sigmoid(shared_gate[t]) * shared[t] (or + shared[t] without a gate). `out` is the residual stream.
struct MoeCombineArgs {
  tensor::TensorView y;                   // [T * K, D]
  absl::Span<const std::int32_t> source;  // [T, K]: rows of y, then of host_y
  absl::Span<const float> weights;        // [T, K]
  tensor::TensorView shared;              // [T, D], or data == nullptr
  tensor::TensorView shared_gate;         // [T, 1], or data == nullptr
  tensor::TensorView out;                 // [T, D]
  // [*, D], or data == nullptr: what the host computed, as it lies in page-locked memory. Row i of it is
  // source y.rows + i.
  tensor::TensorView host_y = {};
};
absl::Status MoeCombine(const KernelTable& table, const MoeCombineArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
