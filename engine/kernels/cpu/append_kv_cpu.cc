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

// The same as integers with scales, a group of dimensions at a time.
void AppendIntegers(const AppendKvArgs& args, base::BlockId block, std::int64_t slot, std::int64_t row,
                    std::int64_t count) {
  const tensor::KvLayout& layout = args.kv.layout;
  for (std::int64_t h = 0; h < layout.kv_heads; ++h) {
    auto* keys = args.kv.keys<std::int8_t>(block, h);
    auto* values = args.kv.values<std::int8_t>(block, h);
    for (std::int64_t g = 0; g < layout.groups(); ++g) {
      const std::int64_t begin = g * tensor::kKvGroupDims;
      const std::int64_t size = std::min(tensor::kKvGroupDims, layout.head_dim - begin);
      const std::int64_t from = h * layout.head_dim + begin;
      for (std::int64_t s = slot; s < slot + count; ++s, ++row) {
        std::int8_t numbers[tensor::kKvGroupDims];
        args.kv.scales(keys)[g * kBlock + s] =
            tensor::QuantizeKvGroup(args.keys.f32(row) + from, size, numbers);
        for (std::int64_t p = 0; p < size; ++p) {
          keys[layout.key_at(begin + p, s)] = numbers[p];
        }
        args.kv.scales(values)[g * kBlock + s] =
            tensor::QuantizeKvGroup(args.values.f32(row) + from, size, numbers);
        for (std::int64_t p = 0; p < size; ++p) {
          values[layout.value_at(begin + p, s)] = numbers[p];
        }
      }
      row -= count;
    }
  }
}

template <typename T>
void AppendRows(const AppendKvArgs& args) {
  for (const SequenceRows& seq : args.sequences) {
    for (std::int64_t r = 0; r < seq.num_rows;) {
      const std::int64_t position = seq.start_position + r;
      const std::int64_t count = std::min(kBlock - position % kBlock, seq.num_rows - r);
      const base::BlockId block = seq.blocks[static_cast<std::size_t>(position / kBlock)];
      if constexpr (tensor::kHasKvScales<T>) {
        AppendIntegers(args, block, position % kBlock, seq.first_row + r, count);
      } else {
        AppendToBlock<T>(args, block, position % kBlock, seq.first_row + r, count);
      }
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
