// The highest logits of each row, for the host to draw from: a few numbers a row cross the link and not a
// whole vocabulary. Rules for every op stand in ops.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/tensor/tensor_view.h"

namespace comoe::kernels {

inline constexpr std::int64_t kMostTopLogits = 64;
inline constexpr std::int64_t kMostTopLogitsVocab = 262144;

constexpr std::size_t TopLogitsScratchBytes(std::int64_t rows, std::int64_t k) {
  return static_cast<std::size_t>(rows * k) * 256;
}

struct TopLogitsArgs {
  tensor::TensorView logits;      // [T, V], V at most kMostTopLogitsVocab
  std::int64_t k = 1;             // at most V and kMostTopLogits
  absl::Span<std::byte> scratch;  // device memory, TopLogitsScratchBytes(T, k)
  // [T, k] out, for the host once the work is done: the highest first, the lower id first among equals. NaN
  // comes before everything else, so that the first of a row tells whether there is any.
  absl::Span<std::int32_t> ids;
  absl::Span<float> values;
};
// Whether `table` has it, and it costs less than to copy `rows` rows of `vocab` logits to the host and look
// through them there.
inline bool PaysTopLogits(const KernelTable& table, std::int64_t rows, std::int64_t vocab) {
  return table.top_logits != nullptr && vocab <= kMostTopLogitsVocab && rows * vocab >= table.top_logits_from;
}
absl::Status TopLogits(const KernelTable& table, const TopLogitsArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
