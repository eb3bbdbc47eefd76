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
