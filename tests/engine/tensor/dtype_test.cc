// Conversions over every 16-bit value, and rounding at every boundary between two of them.
#include "engine/tensor/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace comoe::tensor {
namespace {

constexpr int kAll = 65536;

std::uint16_t Bits(int i) { return static_cast<std::uint16_t>(i); }

// What binary16 means, in double.
double F16Meaning(int bits) {
  const int exponent = (bits >> 10) & 31;
  const double mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  return sign *
         (exponent == 0 ? mantissa * std::pow(2.0, -24) : (1024.0 + mantissa) * std::pow(2.0, exponent - 25));
}

TEST(DTypeTest, Names) {
  EXPECT_EQ(DTypeName(DType::kF32), "F32");
  EXPECT_EQ(DTypeName(DType::kBf16), "BF16");
  EXPECT_EQ(DTypeName(DType::kF16), "F16");
  EXPECT_EQ(DTypeBytes(DType::kF32), 4U);
  EXPECT_EQ(DTypeBytes(DType::kBf16), 2U);
  EXPECT_EQ(DTypeBytes(DType::kF16), 2U);
}

TEST(DTypeTest, EveryF16ValueMeansWhatItShould) {
  for (int i = 0; i < kAll; ++i) {
    const float value = F16ToFloat(Bits(i));
    if (std::isnan(F16Meaning(i))) {
      ASSERT_TRUE(std::isnan(value)) << i;
    } else {
      ASSERT_EQ(static_cast<double>(value), F16Meaning(i)) << i;
      ASSERT_EQ(std::signbit(value), (i & 0x8000) != 0) << i;
    }
  }
}

TEST(DTypeTest, EveryBf16ValueIsTheUpperHalf) {
  for (int i = 0; i < kAll; ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(Bf16ToFloat(Bits(i))), static_cast<std::uint32_t>(i) << 16);
  }
}

TEST(DTypeTest, EveryValueSurvivesTheRoundTrip) {
  for (int i = 0; i < kAll; ++i) {
    if (std::isnan(F16ToFloat(Bits(i)))) {
      ASSERT_TRUE(std::isnan(F16ToFloat(FloatToF16(F16ToFloat(Bits(i)))))) << i;
    } else {
      ASSERT_EQ(FloatToF16(F16ToFloat(Bits(i))), i);
    }
    if (std::isnan(Bf16ToFloat(Bits(i)))) {
      ASSERT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(Bf16ToFloat(Bits(i)))))) << i;
    } else {
      ASSERT_EQ(FloatToBf16(Bf16ToFloat(Bits(i))), i);
    }
  }
}

// Around the middle between each value and the next: below it down, above it up, on it to the even one.
template <class ToFloat, class FromFloat>
void ExpectRoundsToNearestEven(int finite_values, const ToFloat& to_float, const FromFloat& from_float) {
  for (int i = 0; i + 1 < finite_values; ++i) {
    for (const int sign : {0, 0x8000}) {
      const double low = to_float(Bits(i | sign));
      const double high = to_float(Bits((i + 1) | sign));
      const auto middle = static_cast<float>((low + high) / 2);  // exact: both have few bits
      ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << i;
      const float toward =
          sign == 0 ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
      ASSERT_EQ(from_float(middle), (i % 2 == 0 ? i : i + 1) | sign) << i;
      ASSERT_EQ(from_float(std::nextafterf(middle, 0.0F)), i | sign) << i;
      ASSERT_EQ(from_float(std::nextafterf(middle, toward)), (i + 1) | sign) << i;
    }
  }
}

TEST(DTypeTest, F16RoundsToNearestEvenSubnormalsIncluded) {
  ExpectRoundsToNearestEven(0x7c00, F16ToFloat, FloatToF16);
}

TEST(DTypeTest, Bf16RoundsToNearestEvenSubnormalsIncluded) {
  ExpectRoundsToNearestEven(0x7f80, Bf16ToFloat, FloatToBf16);
}

TEST(DTypeTest, Overflow) {
  EXPECT_EQ(FloatToF16(65504.0F), 0x7bff);
  EXPECT_EQ(FloatToF16(std::nextafterf(65520.0F, 0.0F)), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0F), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30F), 0xfc00);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::infinity()), 0x7c00);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
  EXPECT_EQ(FloatToF16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToF16(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST(DTypeTest, FiniteF16IsF16ExceptForOverflow) {
  for (int i = 0; i < kAll; ++i) {  // every half and its neighbours, and what lies in the middle of two
    const float value = F16ToFloat(Bits(i));
    if (!std::isfinite(value)) {
      continue;
    }
    for (const float f : {value, std::nextafterf(value, 1e6F), std::nextafterf(value, -1e6F), value * 1.0001F,
                          (value + F16ToFloat(Bits((i + 1) % kAll))) * 0.5F}) {
      if (std::fabs(f) < 65520.0F) {
        ASSERT_EQ(FloatToFiniteF16(f), FloatToF16(f)) << f;
      }
    }
  }
  ExpectRoundsToNearestEven(0x7bff, F16ToFloat, FloatToFiniteF16);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float large : {65520.0F, 1e30F, std::numeric_limits<float>::max(), infinity}) {
    EXPECT_EQ(FloatToFiniteF16(large), 0x7bff) << large;
    EXPECT_EQ(FloatToFiniteF16(-large), 0xfbff) << large;
  }
  EXPECT_EQ(FloatToFiniteF16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToFiniteF16(-0.0F), 0x8000);
}

// A NaN whose payload lies in the bits that are cut off must not become infinity.
TEST(DTypeTest, NanStaysNan) {
  for (const std::uint32_t bits : {0x7f800001U, 0xff800001U, 0x7fc00000U, 0x7fffffffU}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(nan))));
    EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(nan))));
    EXPECT_TRUE(std::isnan(F16ToFloat(FloatToFiniteF16(nan))));
  }
}

TEST(DTypeTest, LoadElementNeedsNoAlignment) {
  alignas(8) std::byte bytes[16] = {};
  const float value = 1.5F;
  std::memcpy(bytes + 1 + 4, &value, 4);
  EXPECT_EQ(LoadElement(bytes + 1, DType::kF32, 1), 1.5F);
  const std::uint16_t bf16 = FloatToBf16(-2.0F);
  std::memcpy(bytes + 1 + 2, &bf16, 2);
  EXPECT_EQ(LoadElement(bytes + 1, DType::kBf16, 1), -2.0F);
  const std::uint16_t f16 = FloatToF16(0.25F);
  std::memcpy(bytes + 1 + 4, &f16, 2);
  EXPECT_EQ(LoadElement(bytes + 1, DType::kF16, 2), 0.25F);
}

}  // namespace
}  // namespace comoe::tensor
