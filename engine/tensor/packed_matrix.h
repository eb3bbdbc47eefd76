// The one definition of how weight matrices lie in memory, resident ones and those inside expert blobs alike.
//
// A weight is [N, K]: N outputs, K inputs, y[n] = sum_k x[k] w[n, k]. It is cut into panels of 16 outputs;
// the last panel is filled with zeros. Within a panel the inputs follow each other, so that one output's sum
// runs over k in order, whatever the number of rows or the vector width:
//
//   BF16     panel p, pair q: 16 outputs x 2 inputs: byte 64 q + 4 i + 2 j holds w[16 p + i, 2 q + j]. An odd
//   K is
//            filled with a zero column. 64 bytes are one AVX-512 vector: a shift gives the even inputs, a
//            mask the odd ones. The same bytes are an AMX B tile (16 pairs) and a warp's 32-bit words for mma
//            fragments.
//   F16      panel p, input k: 16 outputs.
//   F32      panel p, input k: 16 outputs.
//
// A fused gate-and-up matrix has its panels interleaved: panel 2 i holds gate outputs 16 i .. 16 i + 15,
// panel 2 i + 1 the same outputs of up, so that SwiGLU is applied before anything is stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "engine/base/bytes.h"
#include "engine/tensor/dtype.h"

namespace comoe::tensor {

inline constexpr std::int64_t kPanelOutputs = 16;
inline constexpr std::size_t kWeightAlignment = 256;  // of a matrix and of a blob, bytes

// How the elements of a matrix follow each other. kRows: row after row, as in a checkpoint, with no fill:
// what the matrix libraries of accelerators read. Dense matrices on such devices only; the blobs of FFNs are
// panels everywhere.
enum class MatrixOrder : std::uint8_t { kPanels, kRows };

// Sizes of a packed matrix; n counts real outputs, fill excluded.
struct MatrixLayout {
  DType dtype = DType::kBf16;
  std::int64_t n = 0;
  std::int64_t k = 0;
  MatrixOrder order = MatrixOrder::kPanels;

  constexpr std::int64_t panels() const { return (n + kPanelOutputs - 1) / kPanelOutputs; }
  // Inputs as stored: even for BF16.
  constexpr std::int64_t padded_k() const { return dtype == DType::kBf16 ? (k + 1) / 2 * 2 : k; }
  constexpr std::size_t panel_bytes() const {
    return static_cast<std::size_t>(padded_k() * kPanelOutputs) * DTypeBytes(dtype);
  }
  constexpr std::size_t row_bytes() const {
    return static_cast<std::size_t>(k) * DTypeBytes(dtype);
  }  // kRows
  constexpr std::size_t bytes() const {
    return order == MatrixOrder::kRows ? static_cast<std::size_t>(n) * row_bytes()
                                       : static_cast<std::size_t>(panels()) * panel_bytes();
  }
  friend bool operator==(const MatrixLayout&, const MatrixLayout&) = default;
};

// A packed matrix that somebody else owns; data is aligned to 64 bytes at least.
struct PackedMatrixView {
  const std::byte* data = nullptr;
  MatrixLayout layout;

  const std::byte* panel(std::int64_t p) const {
    return data + static_cast<std::size_t>(p) * layout.panel_bytes();
  }
};

// Writes panels for rows [N, K] of `source` (row-major, layout.dtype) to `target`: source panel p goes to
// panel first_panel + p * panel_step, so step 2 with first 0 or 1 interleaves gate and up. Fill is zero.
void PackPanels(const MatrixLayout& layout, const std::byte* source, std::byte* target,
                std::int64_t first_panel, std::int64_t panel_step);

// w[n, k] as float, in either order: for reference kernels and tests. n counts stored outputs (fill is 0).
float WeightAt(const PackedMatrixView& w, std::int64_t n, std::int64_t k);

// Where the three matrices of one expert lie in its blob. SwiGLU experts: gate_up is fused as described above
// with F padded to whole panels (layout.n = 2 * padded F), down is [D, F].
struct BlobLayout {
  std::int64_t hidden = 0;        // D
  std::int64_t intermediate = 0;  // F
  MatrixLayout gate_up;
  MatrixLayout down;
  std::size_t gate_up_offset = 0;  // bytes from the start of the blob
  std::size_t down_offset = 0;
  std::size_t bytes = 0;  // of the blob, a multiple of kWeightAlignment

  static BlobLayout Make(DType dtype, std::int64_t hidden, std::int64_t intermediate);
  friend bool operator==(const BlobLayout&, const BlobLayout&) = default;
};

// The bytes of one expert, wherever they lie.
struct ExpertView {
  const std::byte* data = nullptr;
  const BlobLayout* layout = nullptr;

  PackedMatrixView gate_up() const { return {data + layout->gate_up_offset, layout->gate_up}; }
  PackedMatrixView down() const { return {data + layout->down_offset, layout->down}; }
};

}  // namespace comoe::tensor
