// Root-mean-square norm, of whole rows or of equal parts of them. Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// For each row and each of `groups` equal parts of it: y = x / sqrt(mean(x^2) + eps) * weight. groups = 1 is
// the usual norm; groups = H with weight [P] is the per-head norm of queries. y may be x.
struct RmsNormArgs {
  tensor::TensorView x;            // [T, groups * W]
  absl::Span<const float> weight;  // [W]
  float epsilon = 1e-6F;
  std::int64_t groups = 1;
  tensor::TensorView y;  // [T, groups * W]
  // [T, W], or data == nullptr: x += add first (x is the residual stream). With groups = 1 only.
  tensor::TensorView add = {};
  // [T, W], or data == nullptr: y goes there too. Page-locked host memory, where KernelTable::reaches_host.
  tensor::TensorView host_y = {};
};
absl::Status RmsNorm(const KernelTable& table, const RmsNormArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
