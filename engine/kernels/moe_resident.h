// A MoE layer's routed experts on a device that has all of them: routing, experts and the weighted sum, all
// queued at once, so that the device never waits for the host. Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// What MoeGate, ExpertFfn over the rows of each chosen expert and MoeCombine give, in this order and to the
// bit.
struct MoeResidentArgs {
  tensor::TensorView x;              // [T, D]
  tensor::TensorView logits;         // [T, E]
  std::int64_t experts_per_row = 0;  // K
  bool normalize = false;
  const tensor::BlobLayout* layout = nullptr;
  absl::Span<const std::uint64_t> blobs;  // [E], in device memory: the address of each expert's blob
  tensor::TensorView scratch;             // [T * K, padded F]
  tensor::TensorView y;                   // [T * K, D]
  tensor::TensorView shared;              // as of MoeCombineArgs
  tensor::TensorView shared_gate;
  tensor::TensorView out;            // [T, D]: the residual stream
  absl::Span<std::int32_t> experts;  // [T, K] out, as of MoeGateArgs: for the host, once the work is done
  absl::Span<float> weights;         // [T, K] out
};
// Whether `table` has it: tables of devices whose kernels need not be told by the host what to run.
inline bool HasMoeResident(const KernelTable& table) { return table.moe_resident != nullptr; }
absl::Status MoeResident(const KernelTable& table, const MoeResidentArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
