// The gated activation of a dense or shared feed-forward network. Rules for every op stand in ops.h.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// y[t, 16 p + i] = silu(gate) * up for a fused gate_up result whose 16-wide groups alternate
// (packed_matrix.h).
struct SwiGluArgs {
  tensor::TensorView gate_up;  // [T, 2 * padded F]
  tensor::TensorView y;        // [T, padded F]
};
absl::Status SwiGlu(const KernelTable& table, const SwiGluArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
