// What PackPanels writes is what WeightAt reads and what the layout's comment says, fill included.
#include "engine/tensor/packed_matrix.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/base/rng.h"
#include "gtest/gtest.h"

namespace comoe::tensor {
namespace {

constexpr DType kDTypes[] = {DType::kBf16, DType::kF16, DType::kF32};
constexpr std::uint64_t kSeed = 77;

// Random bits that are finite numbers in every dtype.
std::vector<std::byte> Source(DType dtype, std::int64_t n, std::int64_t k) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n * k) * DTypeBytes(dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(base::RandomBits(kSeed, i) & 0x3f);
  }
  return bytes;
}

TEST(PackedMatrixTest, RoundTrip) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t n : {1, 2, 15, 16, 17, 31, 32, 40, 48}) {
      for (const std::int64_t k : {1, 2, 3, 7, 8, 16, 33, 48}) {
        const MatrixLayout layout = {dtype, n, k};
        const std::vector<std::byte> source = Source(dtype, n, k);
        std::vector<std::byte> packed(layout.bytes(), std::byte{0xff});
        PackPanels(layout, source.data(), packed.data(), 0, 1);
        const PackedMatrixView view = {packed.data(), layout};
        for (std::int64_t i = 0; i < layout.panels() * kPanelOutputs; ++i) {
          for (std::int64_t j = 0; j < layout.padded_k(); ++j) {
            const bool real = i < n && j < k;
            const float expected =
                real ? LoadElement(source.data(), dtype, static_cast<std::size_t>(i * k + j)) : 0.0F;
            ASSERT_EQ(WeightAt(view, i, j), expected) << n << "x" << k << " at " << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST(PackedMatrixTest, Bf16LiesAsDocumented) {
  const MatrixLayout layout = {DType::kBf16, 20, 5};
  const std::vector<std::byte> source = Source(DType::kBf16, 20, 5);
  std::vector<std::byte> packed(layout.bytes());
  PackPanels(layout, source.data(), packed.data(), 0, 1);
  EXPECT_EQ(layout.panels(), 2);
  EXPECT_EQ(layout.panel_bytes(), 3U * 64U);
  // w[18, 3]: panel 1, pair 1, output 2, second input.
  EXPECT_EQ(std::memcmp(&packed[192 + 64 * 1 + 4 * 2 + 2 * 1], &source[(18 * 5 + 3) * 2], 2), 0);
}

TEST(PackedMatrixTest, InterleavedPanels) {
  for (const DType dtype : kDTypes) {
    const MatrixLayout half = {dtype, 20, 6};
    const MatrixLayout fused = {dtype, 64, 6};
    const std::vector<std::byte> gate = Source(dtype, 20, 6);
    std::vector<std::byte> up = gate;
    for (std::byte& b : up) {
      b ^= std::byte{1};
    }
    std::vector<std::byte> packed(fused.bytes(), std::byte{0xff});
    PackPanels(half, gate.data(), packed.data(), 0, 2);
    PackPanels(half, up.data(), packed.data(), 1, 2);
    const PackedMatrixView view = {packed.data(), fused};
    for (std::int64_t i = 0; i < 32; ++i) {
      for (std::int64_t k = 0; k < 6; ++k) {
        const auto at = static_cast<std::size_t>(i * 6 + k);
        const std::int64_t n = i / 16 * 32 + i % 16;
        ASSERT_EQ(WeightAt(view, n, k), i < 20 ? LoadElement(gate.data(), dtype, at) : 0.0F);
        ASSERT_EQ(WeightAt(view, n + 16, k), i < 20 ? LoadElement(up.data(), dtype, at) : 0.0F);
      }
    }
  }
}

TEST(BlobLayoutTest, Make) {
  const BlobLayout layout = BlobLayout::Make(DType::kBf16, 256, 48);
  EXPECT_EQ(layout.gate_up, (MatrixLayout{DType::kBf16, 96, 256}));
  EXPECT_EQ(layout.down, (MatrixLayout{DType::kBf16, 256, 48}));
  EXPECT_EQ(layout.gate_up_offset, 0U);
  EXPECT_EQ(layout.down_offset, 96U * 256U * 2U);
  EXPECT_EQ(layout.bytes, 3U * 48U * 256U * 2U);
}

TEST(BlobLayoutTest, PadsToPanelsAndAligns) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t f : {1, 15, 17, 33}) {
      const BlobLayout layout = BlobLayout::Make(dtype, 7, f);
      EXPECT_EQ(layout.gate_up.n, 2 * ((f + 15) / 16 * 16));
      EXPECT_EQ(layout.down.k, f);
      EXPECT_EQ(layout.down_offset % kWeightAlignment, 0U);
      EXPECT_EQ(layout.bytes % kWeightAlignment, 0U);
      EXPECT_GE(layout.down_offset, layout.gate_up.bytes());
      EXPECT_GE(layout.bytes, layout.down_offset + layout.down.bytes());
      EXPECT_EQ(layout, BlobLayout::Make(dtype, 7, f));
    }
  }
}

}  // namespace
}  // namespace comoe::tensor
