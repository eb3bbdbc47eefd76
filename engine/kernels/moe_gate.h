// A router's choice: which experts a row uses, and with which weights. Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// Softmax over E in float32, then the K best, best first, the lower expert first among equals. The order is
// that of the logits (softmax keeps it, but may round two of them to one weight), so every backend picks the
// same experts; a NaN ranks below everything. 1 <= K <= E.
struct MoeGateArgs {
  tensor::TensorView logits;         // [T, E]
  std::int64_t experts_per_row = 0;  // K
  bool normalize = false;            // divide the K weights by their sum
  absl::Span<std::int32_t> experts;  // [T, K] out
  absl::Span<float> weights;         // [T, K] out
};
absl::Status MoeGate(const KernelTable& table, const MoeGateArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
