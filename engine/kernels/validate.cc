#include "engine/kernels/validate.h"

#include "absl/strings/str_cat.h"

namespace comoe::kernels {
namespace {

constexpr std::uintptr_t kWeightViewAlignment = 64;  // PackedMatrixView's promise

}  // namespace

absl::Status BadArgument(absl::string_view op, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", what));
}

absl::Status CheckMatrix(absl::string_view op, absl::string_view name, const tensor::TensorView& view,
                         std::int64_t rows, std::int64_t cols) {
  if (view.dtype != tensor::DType::kF32) {
    return BadArgument(op, absl::StrCat(name, " is ", tensor::DTypeName(view.dtype), ", not F32"));
  }
  if (view.rows != rows || view.cols != cols) {
    return BadArgument(
        op, absl::StrCat(name, " is [", view.rows, ", ", view.cols, "], not [", rows, ", ", cols, "]"));
  }
  if (view.row_stride < view.cols) {
    return BadArgument(op,
                       absl::StrCat(name, " has rows of ", view.cols, " at a stride of ", view.row_stride));
  }
  if (view.data == nullptr && rows > 0 && cols > 0) {
    return BadArgument(op, absl::StrCat(name, " has no data"));
  }
  return absl::OkStatus();
}

absl::Status CheckWeight(absl::string_view op, absl::string_view name, const tensor::PackedMatrixView& w) {
  if (w.layout.n <= 0 || w.layout.k <= 0) {
    return BadArgument(op, absl::StrCat(name, " is [", w.layout.n, ", ", w.layout.k, "]"));
  }
  if (w.data == nullptr) {
    return BadArgument(op, absl::StrCat(name, " has no data"));
  }
  if (reinterpret_cast<std::uintptr_t>(w.data) % kWeightViewAlignment != 0) {
    return BadArgument(op, absl::StrCat(name, " is not aligned to ", kWeightViewAlignment, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckPanels(absl::string_view op, const tensor::PackedMatrixView& w) {
  return w.layout.order == tensor::MatrixOrder::kPanels
             ? absl::OkStatus()
             : BadArgument(op, "a matrix in row order; the kernels of this device read panels");
}

absl::Status CheckKv(absl::string_view op, const tensor::KvView& kv) {
  if (kv.layout.kv_heads <= 0 || kv.layout.head_dim <= 0 || kv.num_blocks < 0) {
    return BadArgument(op, absl::StrCat("the KV cache has ", kv.num_blocks, " blocks of ", kv.layout.kv_heads,
                                        " heads of ", kv.layout.head_dim));
  }
  if (kv.layout.dtype != tensor::DType::kF32 && kv.layout.dtype != tensor::DType::kF16) {
    return BadArgument(
        op, absl::StrCat("the KV cache is ", tensor::DTypeName(kv.layout.dtype), ", not F32 or F16"));
  }
  if (kv.data == nullptr && kv.num_blocks > 0) {
    return BadArgument(op, "the KV cache has no data");
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(absl::string_view op, const SequenceRows& seq, std::int64_t rows,
                           const tensor::KvView& kv, std::int64_t first_position) {
  if (seq.first_row < 0 || seq.num_rows < 0 || seq.first_row > rows - seq.num_rows) {
    return BadArgument(
        op, absl::StrCat("a sequence has ", seq.num_rows, " rows from row ", seq.first_row, " of ", rows));
  }
  if (seq.start_position < 0) {
    return BadArgument(op, absl::StrCat("a sequence starts at position ", seq.start_position));
  }
  if (seq.num_rows == 0) {
    return absl::OkStatus();
  }
  const std::int64_t first_block = first_position / tensor::kKvBlockTokens;
  const std::int64_t last_block = (seq.start_position + seq.num_rows - 1) / tensor::kKvBlockTokens;
  if (last_block >= static_cast<std::int64_t>(seq.blocks.size())) {
    return BadArgument(op, absl::StrCat("positions up to ", seq.start_position + seq.num_rows - 1, " need ",
                                        last_block + 1, " blocks, not ", seq.blocks.size()));
  }
  for (std::int64_t b = first_block; b <= last_block; ++b) {
    const std::int32_t id = seq.blocks[static_cast<std::size_t>(b)].value;
    if (id < 0 || id >= kv.num_blocks) {
      return BadArgument(op,
                         absl::StrCat("block ", b, " of a sequence is ", id, ", not one of ", kv.num_blocks));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHostStream(absl::string_view op, const device::Stream& stream) {
  if (stream.device().kind == device::DeviceKind::kCuda) {
    return absl::FailedPreconditionError(absl::StrCat(op, ": a host kernel was given a CUDA stream"));
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
