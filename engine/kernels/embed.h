// Token ids to rows of the embedding table. Rules for every op stand in ops.h.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// out[t, :] = table[ids[t], :]. Ids are in [0, V).
struct EmbedArgs {
  absl::Span<const base::TokenId> ids;  // [T]
  tensor::PackedMatrixView table;       // [V, D]
  tensor::TensorView out;               // [T, D]
};
absl::Status Embed(const KernelTable& table, const EmbedArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
