// Limits every element of a matrix. Rules for every op stand in ops.h.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// x = min(max(x, -limit), limit), in place; NaN stays NaN.
struct ClampArgs {
  tensor::TensorView x;  // [T, D]
  float limit = 0.0F;    // > 0
};
absl::Status Clamp(const KernelTable& table, const ClampArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
