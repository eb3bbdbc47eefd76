#include <bit>
#include <cstdint>

#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/plain_kernels.h"
#include "engine/kernels/validate.h"
#include "engine/tensor/dtype.h"

namespace comoe::kernels {
namespace {

// tensor::F16ToFloat without a branch or a call, so that a row takes as long as one of BF16; NaN keeps its
// payload. In a float's place the exponent and mantissa of an F16 stand for a value 2^112 too small, that of
// a subnormal included; the highest exponent, Inf and NaN, becomes the highest exponent of a float.
float FastF16ToFloat(std::uint16_t bits) {
  const std::uint32_t moved = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
  const auto magnitude = std::bit_cast<std::uint32_t>(std::bit_cast<float>(moved) * 0x1p112F);
  const std::uint32_t highest = (bits & 0x7fff) >= 0x7c00 ? 0x7f800000 : 0;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  return std::bit_cast<float>(magnitude | highest | sign);
}

// Row `id` of the table lies across its panel, one input (or pair of inputs) every 16 outputs.
void EmbedRow(const tensor::PackedMatrixView& table, std::int64_t id, float* out) {
  constexpr std::int64_t kLanes = tensor::kPanelOutputs;
  const std::byte* panel = table.panel(id / kLanes);
  const std::int64_t lane = id % kLanes;
  const std::int64_t k = table.layout.k;
  switch (table.layout.dtype) {
    case tensor::DType::kBf16: {
      const auto* from = reinterpret_cast<const std::uint16_t*>(panel) + 2 * lane;
      for (std::int64_t i = 0; i < k; ++i) {
        out[i] = tensor::Bf16ToFloat(from[i / 2 * 2 * kLanes + i % 2]);
      }
      return;
    }
    case tensor::DType::kF16: {
      const auto* from = reinterpret_cast<const std::uint16_t*>(panel) + lane;
      for (std::int64_t i = 0; i < k; ++i) {
        out[i] = FastF16ToFloat(from[i * kLanes]);
      }
      return;
    }
    case tensor::DType::kF32:
      break;
  }
  const auto* from = reinterpret_cast<const float*>(panel) + lane;
  for (std::int64_t i = 0; i < k; ++i) {
    out[i] = from[i * kLanes];
  }
}

}  // namespace

absl::Status EmbedCpu(const EmbedArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Embed", stream));
  COMOE_RETURN_IF_ERROR(CheckPanels("Embed", args.table));
  // A cache line for each input or pair of them.
  ForRows(stream, args.out.rows, 5.0 * static_cast<double>(args.out.cols), [&](std::int64_t t) {
    EmbedRow(args.table, args.ids[static_cast<std::size_t>(t)], args.out.f32(t));
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels
