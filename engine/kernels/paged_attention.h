// Causal attention over keys and values kept in blocks (tensor/kv_layout.h), and the writing of those blocks.
// Rules for every op stand in ops.h.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/kv_layout.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

// Rows [first_row, first_row + num_rows) of the step belong to one sequence, at positions start_position, +1,
// ...
struct SequenceRows {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t start_position = 0;
  absl::Span<const base::BlockId> blocks;  // block i holds positions [16 i, 16 i + 16)
};

// Brings the sequences of a step, one row each, to where the device's kernels find them, so that AppendKv and
// Attention of all layers need not bring them again: table `table` holds them until it is prepared anew.
// Optional (HasPrepareSequences).
struct PrepareSequencesArgs {
  std::int32_t table = 0;  // a small number
  absl::Span<const SequenceRows> sequences;
};
inline bool HasPrepareSequences(const KernelTable& table) { return table.prepare_sequences != nullptr; }
absl::Status PrepareSequences(const KernelTable& table, const PrepareSequencesArgs& args,
                              device::Stream& stream);

// A bound of positions that is the same for many steps, at most half as much again: prepared sequences are
// attended to as if they might be that long, which changes no bit.
constexpr std::int64_t ContextBound(std::int64_t positions) {
  std::int64_t bound = 256;
  while (bound < positions) {
    bound = bound % 3 == 0 ? bound / 3 * 4 : bound / 2 * 3;
  }
  return bound;
}

// Stores keys and values of the step's rows in their blocks, rounded to the cache's dtype (StoreKv). Blocks
// of different sequences that are written differ, and none of them is kNoBlock. Rows of no sequence are not
// stored.
struct AppendKvArgs {
  tensor::TensorView keys;    // [T, G * P]
  tensor::TensorView values;  // [T, G * P]
  absl::Span<const SequenceRows> sequences;
  tensor::KvView kv;
  std::int32_t table = -1;  // where the same sequences are prepared; -1: nowhere
};
absl::Status AppendKv(const KernelTable& table, const AppendKvArgs& args, device::Stream& stream);

// Causal attention of the step's rows over their sequences' blocks, in float32 whatever dtype they are stored
// in: head h reads KV head h / (H / G);
// position j counts for a row at position i if j <= i and (window == 0 or i - j < window). Blocks are visited
// in order with a running maximum, so a row's result does not depend on how its prompt was cut into chunks.
// Blocks that lie before every row's window are not looked at and may be kNoBlock; positions that do not
// count may hold anything, NaN included. A row whose q.k is NaN at a position that counts is NaN throughout,
// so that no plausible answer comes of it. Rows of no sequence are left as they are.
struct AttentionArgs {
  tensor::TensorView queries;  // [T, H * P]
  absl::Span<const SequenceRows> sequences;
  tensor::KvView kv;
  std::int64_t heads = 0;   // H
  std::int64_t window = 0;  // positions; 0: all
  float scale = 0.0F;       // of q.k, usually 1/sqrt(P)
  tensor::TensorView out;   // [T, H * P]
  std::int32_t table = -1;  // as of AppendKvArgs
};
absl::Status Attention(const KernelTable& table, const AttentionArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
