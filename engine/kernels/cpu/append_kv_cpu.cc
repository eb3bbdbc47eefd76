#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/plain_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;

// Rows [row, row + count) go to slots [slot, slot + count) of a block. T: the stored type.
template <typename T>
void AppendToBlock(const AppendKvArgs& args, base::BlockId block, std::int64_t slot, std::int64_t row,
                   std::int64_t count) {
  const std::int64_t dim = args.kv.layout.head_dim;
  for (std::int64_t h = 0; h < args.kv.layout.kv_heads; ++h) {
    T* keys = args.kv.keys<T>(block, h) + slot;
    T* values = args.kv.values<T>(block, h) + slot * dim;
    const float* from = args.keys.f32(row) + h * dim;
    for (std::int64_t p = 0; p < dim; ++p) {
      for (std::int64_t i = 0; i < count; ++i) {
        tensor::StoreKv(from[i * args.keys.row_stride + p], keys + p * kBlock + i);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const float* value = args.values.f32(row + i) + h * dim;
      for (std::int64_t p = 0; p < dim; ++p) {
        tensor::StoreKv(value[p], values + i * dim + p);
      }
    }
  }
}

template <typename T>
void AppendRows(const AppendKvArgs& args) {
  for (const SequenceRows& seq : args.sequences) {
    for (std::int64_t r = 0; r < seq.num_rows;) {
      const std::int64_t position = seq.start_position + r;
      const std::int64_t count = std::min(kBlock - position % kBlock, seq.num_rows - r);
      AppendToBlock<T>(args, seq.blocks[static_cast<std::size_t>(position / kBlock)], position % kBlock,
                       seq.first_row + r, count);
      r += count;
    }
  }
}

}  // namespace

absl::Status AppendKvCpu(const AppendKvArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("AppendKv", stream));
  tensor::WithStoredType(args.kv.layout, [&](auto stored) { AppendRows<decltype(stored)>(args); });
  return absl::OkStatus();
}

}  // namespace comoe::kernels
