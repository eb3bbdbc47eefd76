// The operations of a forward pass: arguments, shapes and contracts, one struct and one checked function each.
//
// Letters: T rows of the step, D hidden, F intermediate, E experts, K experts a row uses, H query heads, G key
// and value heads, P head dim, V vocabulary. Activations are float32, row-major, in views with a row stride.
// Every function validates shapes and returns INVALID_ARGUMENT naming the op and the mismatch, then runs the
// table's entry on `stream`. None allocates. Outputs never overlap inputs unless said.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/kv_layout.h"
#include "engine/tensor/packed_matrix.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// out[t, :] = table[ids[t], :]. Ids are in [0, V): the engine has checked them.
struct EmbedArgs {
  absl::Span<const base::TokenId> ids;  // [T]
  tensor::PackedMatrixView table;       // [V, D]
  tensor::TensorView out;               // [T, D]
};
absl::Status Embed(const KernelTable& table, const EmbedArgs& args, device::Stream& stream);

// For each row and each of `groups` equal parts of it: y = x / sqrt(mean(x^2) + eps) * weight. groups = 1 is the
// usual norm; groups = H with weight [P] is the per-head norm of queries. y may be x.
struct RmsNormArgs {
  tensor::TensorView x;            // [T, groups * W]
  absl::Span<const float> weight;  // [W]
  float epsilon = 1e-6F;
  std::int64_t groups = 1;
  tensor::TensorView y;            // [T, groups * W]
};
absl::Status RmsNorm(const KernelTable& table, const RmsNormArgs& args, device::Stream& stream);

// y[t, n] = sum_k x[t, k] w[n, k] + bias[n], then clamped to [-clip, clip] if clip > 0. The sum of an output runs
// over even inputs and over odd inputs, each in order with one fused multiply-add an input; then even + odd.
struct MatMulArgs {
  tensor::TensorView x;           // [T, K]
  tensor::PackedMatrixView w;     // [N, K]
  absl::Span<const float> bias;   // [N], or empty
  float clip = 0.0F;
  tensor::TensorView y;           // [T, N]
};
absl::Status MatMul(const KernelTable& table, const MatMulArgs& args, device::Stream& stream);

// Rotary embedding in place, halves convention: for i < P/2, (x[i], x[i + P/2]) is turned by the angle whose cosine
// and sine (attention scaling included) stand in row t of the tables.
struct RopeArgs {
  tensor::TensorView x;    // [T, heads * P]
  std::int64_t heads = 0;
  tensor::TensorView cos;  // [T, P/2]
  tensor::TensorView sin;  // [T, P/2]
};
absl::Status Rope(const KernelTable& table, const RopeArgs& args, device::Stream& stream);

// Rows [first_row, first_row + num_rows) of the step belong to one sequence, at positions start_position, +1, ...
struct SequenceRows {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t start_position = 0;
  absl::Span<const base::BlockId> blocks;  // block i holds positions [16 i, 16 i + 16)
};

// Stores keys and values of the step's rows in their blocks. Blocks of different sequences that are written differ.
struct AppendKvArgs {
  tensor::TensorView keys;    // [T, G * P]
  tensor::TensorView values;  // [T, G * P]
  absl::Span<const SequenceRows> sequences;
  tensor::KvView kv;
};
absl::Status AppendKv(const KernelTable& table, const AppendKvArgs& args, device::Stream& stream);

// Causal attention of the step's rows over their sequences' blocks: head h reads KV head h / (H / G); position j
// counts for a row at position i if j <= i and (window == 0 or i - j < window). Blocks are visited in order with a
// running maximum, so a row's result does not depend on how its prompt was cut into chunks.
struct AttentionArgs {
  tensor::TensorView queries;  // [T, H * P]
  absl::Span<const SequenceRows> sequences;
  tensor::KvView kv;
  std::int64_t heads = 0;      // H
  std::int64_t window = 0;     // positions; 0: all
  float scale = 0.0F;          // of q.k, usually 1/sqrt(P)
  tensor::TensorView out;      // [T, H * P]
};
absl::Status Attention(const KernelTable& table, const AttentionArgs& args, device::Stream& stream);

// Softmax over E in float32, then the K best, best first, the lower expert first among equals.
struct MoeGateArgs {
  tensor::TensorView logits;         // [T, E]
  std::int64_t experts_per_row = 0;  // K
  bool normalize = false;            // divide the K weights by their sum
  absl::Span<std::int32_t> experts;  // [T, K] out
  absl::Span<float> weights;         // [T, K] out
};
absl::Status MoeGate(const KernelTable& table, const MoeGateArgs& args, device::Stream& stream);

// The rows that one expert computes.
struct ExpertRows {
  tensor::ExpertView expert;
  absl::Span<const std::int32_t> rows;  // of x, at least one
  std::int64_t first_out = 0;           // results go to rows first_out, +1, ... of y
};
// y = down(silu(gate(x)) * up(x)) for each expert's rows. All experts have one layout.
struct ExpertFfnArgs {
  tensor::TensorView x;  // [T, D]
  absl::Span<const ExpertRows> experts;
  tensor::TensorView scratch;  // [sum of rows, padded F]: silu(gate) * up
  tensor::TensorView y;        // [sum of rows, D]
};
absl::Status ExpertFfn(const KernelTable& table, const ExpertFfnArgs& args, device::Stream& stream);

// out[t] += sum over k in order of weights[t, k] * y[source[t * K + k]], then, when there is a shared expert,
// + sigmoid(shared_gate[t]) * shared[t] (or + shared[t] without a gate). `out` is the residual stream.
struct MoeCombineArgs {
  tensor::TensorView y;                    // [T * K, D]
  absl::Span<const std::int32_t> source;   // [T, K]: rows of y
  absl::Span<const float> weights;         // [T, K]
  tensor::TensorView shared;               // [T, D], or data == nullptr
  tensor::TensorView shared_gate;          // [T, 1], or data == nullptr
  tensor::TensorView out;                  // [T, D]
};
absl::Status MoeCombine(const KernelTable& table, const MoeCombineArgs& args, device::Stream& stream);

// y[t, 16 p + i] = silu(gate) * up for a fused gate_up result whose 16-wide groups alternate (packed_matrix.h).
struct SwiGluArgs {
  tensor::TensorView gate_up;  // [T, 2 * padded F]
  tensor::TensorView y;        // [T, padded F]
};
absl::Status SwiGlu(const KernelTable& table, const SwiGluArgs& args, device::Stream& stream);

// y += x.
struct AddArgs {
  tensor::TensorView x;  // [T, D]
  tensor::TensorView y;  // [T, D]
};
absl::Status Add(const KernelTable& table, const AddArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
