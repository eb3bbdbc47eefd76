#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {
namespace {

constexpr std::int64_t kBlock = tensor::kKvBlockTokens;

// One head of one row at `position`: out[P] = softmax(scale * q.k) v over the positions that count.
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
    const float* keys = args.kv.keys(block, kv_head) + j % kBlock;
    const float* values = args.kv.values(block, kv_head) + j % kBlock * dim;
    float score = 0;
    for (std::int64_t p = 0; p < dim; ++p) {
      score += query[p] * keys[p * kBlock];
    }
    score *= args.scale;
    const float raised = std::max(maximum, score);
    const float keep = std::exp(maximum - raised);
    const float weight = std::exp(score - raised);
    maximum = raised;
    sum = sum * keep + weight;
    for (std::int64_t p = 0; p < dim; ++p) {
      out[p] = out[p] * keep + weight * values[p];
    }
  }
  for (std::int64_t p = 0; p < dim; ++p) {
    out[p] /= sum;
  }
}

}  // namespace

absl::Status AppendKvRef(const AppendKvArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("AppendKv", stream));
  const std::int64_t dim = args.kv.layout.head_dim;
  for (const SequenceRows& seq : args.sequences) {
    for (std::int64_t r = 0; r < seq.num_rows; ++r) {
      const std::int64_t position = seq.start_position + r;
      const base::BlockId block = seq.blocks[static_cast<std::size_t>(position / kBlock)];
      const std::int64_t slot = position % kBlock;
      for (std::int64_t h = 0; h < args.kv.layout.kv_heads; ++h) {
        for (std::int64_t p = 0; p < dim; ++p) {
          args.kv.keys(block, h)[p * kBlock + slot] = args.keys.f32(seq.first_row + r)[h * dim + p];
          args.kv.values(block, h)[slot * dim + p] = args.values.f32(seq.first_row + r)[h * dim + p];
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AttentionRef(const AttentionArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Attention", stream));
  const std::int64_t dim = args.kv.layout.head_dim;
  for (const SequenceRows& seq : args.sequences) {
    for (std::int64_t r = 0; r < seq.num_rows; ++r) {
      for (std::int64_t h = 0; h < args.heads; ++h) {
        AttendRef(args, seq, seq.start_position + r, h, args.queries.f32(seq.first_row + r) + h * dim,
                  args.out.f32(seq.first_row + r) + h * dim);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
