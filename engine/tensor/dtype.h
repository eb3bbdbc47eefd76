// Element types of stored tensors and of activations, and exact conversions to float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace comoe::tensor {

enum class DType { kF32, kBf16, kF16 };

absl::string_view DTypeName(DType dtype);  // "F32", "BF16", "F16": safetensors' spelling
constexpr std::size_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr float Bf16ToFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
// Round to nearest even; NaN stays NaN.
std::uint16_t FloatToBf16(float value);
float F16ToFloat(std::uint16_t bits);
std::uint16_t FloatToF16(float value);

// FloatToF16, except that what overflows, infinity included, becomes the largest finite value. Without a
// branch or a call, so that a loop over it is made of vectors.
inline std::uint16_t FloatToFiniteF16(float value) {
  constexpr std::uint32_t kLargest = 0x477fe000;         // 65504.0F
  constexpr std::uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t finite = magnitude < kLargest ? magnitude : kLargest;
  // Normal: 13 bits of the mantissa go, and the exponent's bias falls by 112. A carry moves into the
  // exponent.
  const std::uint32_t normal = (finite + 0xfff + ((finite >> 13) & 1) - (112U << 23)) >> 13;
  // Subnormal: a float in [0.5, 1) has its last place where these have it, at 2^-24, so the addition rounds.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(finite) + 0.5F) - std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t half = finite < kSmallestNormal ? subnormal : normal;
  half = magnitude > 0x7f800000 ? 0x7e00 : half;  // NaN
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000) | half);
}

// Element i of an array of `dtype` that need not be aligned.
inline float LoadElement(const std::byte* data, DType dtype, std::size_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, data + i * 4, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + i * 2, 2);
  return dtype == DType::kBf16 ? Bf16ToFloat(bits) : F16ToFloat(bits);
}

}  // namespace comoe::tensor
