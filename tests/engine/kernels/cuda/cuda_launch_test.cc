// The sizes that cuda_launch.h promises, without a device: workspaces hold what kernels write.
#include "engine/kernels/cuda/cuda_launch.h"

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"

namespace comoe::kernels {
namespace {

// Pieces of a context of `length` positions whose first counts at `first` (attention_decode.cuh).
std::int64_t Pieces(std::int64_t first, std::int64_t length) {
  const std::int64_t blocks = (first + length - 1) / 16 - first / 16 + 1;
  const std::int64_t piece_blocks = CudaDecodePiece(length) / 16;
  return (blocks + piece_blocks - 1) / piece_blocks;
}

TEST(CudaLaunchTest, DecodePiecesBoundEveryContextUpToTheirs) {
  std::int64_t most = 0;
  std::int64_t most_aligned = 0;
  for (std::int64_t length = 1; length < 40000; ++length) {
    most_aligned = std::max(most_aligned, Pieces(0, length));
    ASSERT_EQ(most_aligned, CudaDecodePieces(length, 0)) << length;
    for (std::int64_t first = 0; first < 16; ++first) {
      most = std::max(most, Pieces(first, length));
    }
    ASSERT_LE(most, CudaDecodePieces(length)) << length;
  }
}

TEST(CudaLaunchTest, DecodePiecesAreWholeRoundsOfTheWarps) {
  // Four warps take a piece's blocks of 16 in turn, and keep the ids of up to 32 of them each.
  for (const std::int64_t length : {1, 256, 257, 512, 513, 16384, 16385, 1000000}) {
    EXPECT_EQ(CudaDecodePiece(length) % 64, 0);
    EXPECT_LE(CudaDecodePiece(length) / 16, 4 * 32);
  }
}

TEST(CudaLaunchTest, TermsArePaddedAndAligned) {
  EXPECT_EQ(CudaTermBytes(3, 1, CudaPrecision::kBf16), 3U * 64 * 2);
  EXPECT_EQ(CudaTermBytes(3, 65, CudaPrecision::kExact), 3U * 3 * 128 * 2);
  EXPECT_EQ(CudaTermBytes(1, 64, CudaPrecision::kExact) % 16, 0U);
}

}  // namespace
}  // namespace comoe::kernels
