#include "engine/tensor/kv_layout.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::tensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Group {
  explicit Group(const std::vector<float>& from) : numbers(from.size(), 55) {
    scale = QuantizeKvGroup(from.data(), static_cast<std::int64_t>(from.size()), numbers.data());
  }
  std::vector<std::int8_t> numbers;
  float scale = 0.0F;
};

TEST(QuantizeKvGroup, RoundsToNearestEven) {
  const Group group({127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -126.5F, 3.49F, -0.0F});
  EXPECT_EQ(group.scale, 1.0F);
  EXPECT_THAT(group.numbers, ElementsAre(127, 0, 2, 2, 0, -2, -126, 3, 0));
}

TEST(QuantizeKvGroup, IsOffByHalfAStep) {
  for (const float magnitude : {1e-20F, 0.003F, 1.0F, 6e4F}) {
    std::vector<float> from;
    for (int i = 0; i < kKvGroupDims; ++i) {
      from.push_back(magnitude * std::sin(static_cast<float>(i * i)));
    }
    const Group group(from);
    for (std::size_t i = 0; i < from.size(); ++i) {
      EXPECT_NEAR(static_cast<float>(group.numbers[i]) * group.scale, from[i], 0.50001F * group.scale);
      EXPECT_GE(group.numbers[i], -127);
    }
  }
}

TEST(QuantizeKvGroup, WhatAHalfCannotHoldIsItsLargest) {
  for (const float large : {65504.0F, 65505.0F, 1e30F, kInf}) {
    const Group group({large, -large, 1.0F, 516.0F});
    EXPECT_EQ(group.scale, 65504.0F / 127.0F);
    EXPECT_THAT(group.numbers, ElementsAre(127, -127, 0, 1));
  }
}

TEST(QuantizeKvGroup, NanStaysNan) {
  const Group group({1.0F, kNan, kInf});
  EXPECT_TRUE(std::isnan(group.scale));
  EXPECT_THAT(group.numbers, Each(0));
}

TEST(QuantizeKvGroup, NextToNothingIsZero) {
  for (const float small : {0.0F, std::numeric_limits<float>::denorm_min(), 9e-31F}) {
    const Group group({small, -small});
    EXPECT_EQ(group.scale, 0.0F);
    EXPECT_THAT(group.numbers, Each(0));
  }
}

// Every number has a place of its own before the scales, and heads and blocks follow without a gap.
TEST(KvLayout, PlacesDoNotOverlap) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8}) {
    for (const std::int64_t dim : {1, 2, 31, 32, 33, 64}) {
      const KvLayout layout = {3, dim, dtype};
      std::set<std::int64_t> keys;
      std::set<std::int64_t> values;
      for (std::int64_t p = 0; p < dim; ++p) {
        for (std::int64_t slot = 0; slot < kKvBlockTokens; ++slot) {
          keys.insert(layout.key_at(p, slot));
          values.insert(layout.value_at(p, slot));
        }
      }
      const auto numbers = static_cast<std::size_t>(dim * kKvBlockTokens);
      EXPECT_EQ(keys.size(), numbers);
      EXPECT_EQ(values.size(), numbers);
      EXPECT_GE(*keys.begin(), 0);
      EXPECT_GE(*values.begin(), 0);
      EXPECT_LT(*keys.rbegin(), layout.key_elements());
      EXPECT_LT(*values.rbegin(), layout.key_elements());
      EXPECT_EQ(layout.block_bytes(), 6 * layout.piece_bytes());
      EXPECT_EQ(layout.position_bytes() * 16, layout.block_bytes());
    }
  }
}

TEST(KvLayout, BytesOfAPosition) {
  EXPECT_EQ((KvLayout{2, 64, DType::kF32}).position_bytes(), 2U * 2 * 64 * 4);
  EXPECT_EQ((KvLayout{2, 64, DType::kF16}).position_bytes(), 2U * 2 * 64 * 2);
  EXPECT_EQ((KvLayout{2, 64, DType::kQ8}).position_bytes(), 2U * 2 * (64 + 2 * 4));
  EXPECT_EQ((KvLayout{2, 33, DType::kQ8}).position_bytes(), 2U * 2 * (34 + 2 * 4));
}

}  // namespace
}  // namespace comoe::tensor
