// Adds a matrix to another. Rules for every op stand in ops.h.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// y += x.
struct AddArgs {
  tensor::TensorView x;  // [T, D]
  tensor::TensorView y;  // [T, D]
};
absl::Status Add(const KernelTable& table, const AddArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
