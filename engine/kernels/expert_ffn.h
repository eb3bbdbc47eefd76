// The feed-forward networks of experts, each over its own rows. Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// The rows that one expert computes.
struct ExpertRows {
  tensor::ExpertView expert;
  absl::Span<const std::int32_t> rows;  // of x
  std::int64_t first_out = 0;           // results go to rows first_out, +1, ... of y
};
// y = down(silu(gate(x)) * up(x)) for each expert's rows, with sums ordered as in matmul.h. All experts have
// one layout; their rows of y do not overlap, and rows of y that no expert names are left as they are.
struct ExpertFfnArgs {
  tensor::TensorView x;  // [T, D]
  absl::Span<const ExpertRows> experts;
  tensor::TensorView scratch;  // [as y, padded F]: silu(gate) * up, in y's rows
  tensor::TensorView y;        // [at least every first_out + its rows, D]
};
absl::Status ExpertFfn(const KernelTable& table, const ExpertFfnArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
