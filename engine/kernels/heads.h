// What queries and keys go through before they meet: norms of their heads and the rotary embedding. Rules for
// every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// In place, for queries and keys side by side: RmsNorm of each head where there is a weight, then Rope. One
// launch where the table has it, else those ops one after the other.
struct HeadsArgs {
  tensor::TensorView x;  // [T, (H + G) * P]: queries, then keys
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  absl::Span<const float> query_norm;  // [P], or empty: no norm
  absl::Span<const float> key_norm;    // the same
  float epsilon = 1e-6F;
  tensor::TensorView cos;  // [T, P/2]
  tensor::TensorView sin;  // [T, P/2]
};
absl::Status Heads(const KernelTable& table, const HeadsArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
