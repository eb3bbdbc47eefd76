#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;

// One head of one row at `position`: out[P] = softmax(scale * q.k) v over the positions that count. T: the
// stored type.
template <typename T>
void AttendRef(const AttentionArgs& args, const SequenceRows& seq, std::int64_t position, std::int64_t head,
               const float* query, float* out) {
  const std::int64_t dim = args.kv.layout.head_dim;
  const std::int64_t kv_head = head / (args.heads / args.kv.layout.kv_heads);
  const std::int64_t first = args.window == 0 ? 0 : std::max<std::int64_t>(0, position - args.window + 1);
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;
  std::fill(out, out + dim, 0.0F);
  for (std::int64_t j = first; j <= position; ++j) {
    const base::BlockId block = seq.blocks[static_cast<std::size_t>(j / kBlock)];
    const T* keys = args.kv.keys<T>(block, kv_head) + j % kBlock;
    const T* values = args.kv.values<T>(block, kv_head) + j % kBlock * dim;
    float score = 0;
    for (std::int64_t p = 0; p < dim; ++p) {
      score += query[p] * tensor::LoadKv(keys + p * kBlock);
    }
    score *= args.scale;
    const float raised = std::max(maximum, score);
    const float keep = std::exp(maximum - raised);
    const float weight = std::exp(score - raised);
    maximum = raised;
    sum = sum * keep + weight;
    for (std::int64_t p = 0; p < dim; ++p) {
      out[p] = out[p] * keep + weight * tensor::LoadKv(values + p);
    }
  }
  for (std::int64_t p = 0; p < dim; ++p) {
    out[p] /= sum;
  }
}

template <typename T>
void AppendRows(const AppendKvArgs& args) {
  const std::int64_t dim = args.kv.layout.head_dim;
  for (const SequenceRows& seq : args.sequences) {
    for (std::int64_t r = 0; r < seq.num_rows; ++r) {
      const std::int64_t position = seq.start_position + r;
      const base::BlockId block = seq.blocks[static_cast<std::size_t>(position / kBlock)];
      const std::int64_t slot = position % kBlock;
      for (std::int64_t h = 0; h < args.kv.layout.kv_heads; ++h) {
        for (std::int64_t p = 0; p < dim; ++p) {
          tensor::StoreKv(args.keys.f32(seq.first_row + r)[h * dim + p],
                          args.kv.keys<T>(block, h) + p * kBlock + slot);
          tensor::StoreKv(args.values.f32(seq.first_row + r)[h * dim + p],
                          args.kv.values<T>(block, h) + slot * dim + p);
        }
      }
    }
  }
}

template <typename T>
void AttendRows(const AttentionArgs& args) {
  const std::int64_t dim = args.kv.layout.head_dim;
  for (const SequenceRows& seq : args.sequences) {
    for (std::int64_t r = 0; r < seq.num_rows; ++r) {
      for (std::int64_t h = 0; h < args.heads; ++h) {
        AttendRef<T>(args, seq, seq.start_position + r, h, args.queries.f32(seq.first_row + r) + h * dim,
                     args.out.f32(seq.first_row + r) + h * dim);
      }
    }
  }
}

}  // namespace

absl::Status AppendKvRef(const AppendKvArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("AppendKv", stream));
  tensor::WithStoredType(args.kv.layout, [&](auto stored) { AppendRows<decltype(stored)>(args); });
  return absl::OkStatus();
}

absl::Status AttentionRef(const AttentionArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Attention", stream));
  tensor::WithStoredType(args.kv.layout, [&](auto stored) { AttendRows<decltype(stored)>(args); });
  return absl::OkStatus();
}

}  // namespace comoe::kernels
