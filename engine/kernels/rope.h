// Rotary position embedding. Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// Rotary embedding in place, halves convention: for i < P/2, (x[i], x[i + P/2]) is turned by the angle whose
// cosine and sine (attention scaling included) stand in row t of the tables.
struct RopeArgs {
  tensor::TensorView x;  // [T, heads * P]
  std::int64_t heads = 0;
  tensor::TensorView cos;  // [T, P/2]
  tensor::TensorView sin;  // [T, P/2]
};
absl::Status Rope(const KernelTable& table, const RopeArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
