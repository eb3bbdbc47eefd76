#include "engine/tensor/packed_matrix.h"

#include <algorithm>
#include <cstring>

namespace comoe::tensor {
namespace {

constexpr std::int64_t kLanes = kPanelOutputs;

// One panel of BF16: pairs of inputs of 16 outputs.
void PackBf16Panel(const std::byte* source, std::int64_t rows, std::int64_t k, std::byte* target) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::byte* row = source + i * k * 2;
    std::byte* out = target + i * 4;
    for (std::int64_t q = 0; q + 1 < k; q += 2) {
      std::memcpy(out + q / 2 * kLanes * 4, row + q * 2, 4);
    }
    if (k % 2 != 0) {
      std::memcpy(out + k / 2 * kLanes * 4, row + (k - 1) * 2, 2);
    }
  }
}

template <std::size_t kBytes>
void PackPlainPanel(const std::byte* source, std::int64_t rows, std::int64_t k, std::byte* target) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::byte* row = source + i * k * static_cast<std::int64_t>(kBytes);
    for (std::int64_t j = 0; j < k; ++j) {
      std::memcpy(target + (j * kLanes + i) * static_cast<std::int64_t>(kBytes),
                  row + j * static_cast<std::int64_t>(kBytes), kBytes);
    }
  }
}

}  // namespace

void PackPanels(const MatrixLayout& layout, const std::byte* source, std::byte* target,
                std::int64_t first_panel, std::int64_t panel_step) {
  const std::size_t row_bytes = static_cast<std::size_t>(layout.k) * DTypeBytes(layout.dtype);
  for (std::int64_t p = 0; p < layout.panels(); ++p) {
    const std::int64_t rows = std::min(kLanes, layout.n - p * kLanes);
    const std::byte* from = source + static_cast<std::size_t>(p * kLanes) * row_bytes;
    std::byte* to = target + static_cast<std::size_t>(first_panel + p * panel_step) * layout.panel_bytes();
    if (rows < kLanes || layout.padded_k() != layout.k) {
      std::memset(to, 0, layout.panel_bytes());
    }
    switch (layout.dtype) {
      case DType::kBf16:
        PackBf16Panel(from, rows, layout.k, to);
        break;
      case DType::kF16:
        PackPlainPanel<2>(from, rows, layout.k, to);
        break;
      case DType::kF32:
        PackPlainPanel<4>(from, rows, layout.k, to);
        break;
    }
  }
}

float WeightAt(const PackedMatrixView& w, std::int64_t n, std::int64_t k) {
  if (w.layout.order == MatrixOrder::kRows) {
    return LoadElement(w.data, w.layout.dtype, static_cast<std::size_t>(n * w.layout.k + k));
  }
  const std::byte* panel = w.panel(n / kLanes);
  const std::int64_t lane = n % kLanes;
  if (w.layout.dtype == DType::kBf16) {
    return LoadElement(panel, DType::kBf16, static_cast<std::size_t>((k / 2 * kLanes + lane) * 2 + k % 2));
  }
  return LoadElement(panel, w.layout.dtype, static_cast<std::size_t>(k * kLanes + lane));
}

BlobLayout BlobLayout::Make(DType dtype, std::int64_t hidden, std::int64_t intermediate) {
  BlobLayout layout;
  layout.hidden = hidden;
  layout.intermediate = intermediate;
  const std::int64_t padded = (intermediate + kLanes - 1) / kLanes * kLanes;
  layout.gate_up = {dtype, 2 * padded, hidden};
  layout.down = {dtype, hidden, intermediate};
  layout.gate_up_offset = 0;
  layout.down_offset = base::AlignUp(layout.gate_up.bytes(), kWeightAlignment);
  layout.bytes = base::AlignUp(layout.down_offset + layout.down.bytes(), kWeightAlignment);
  return layout;
}

}  // namespace comoe::tensor
