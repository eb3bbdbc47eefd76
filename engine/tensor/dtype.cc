#include "engine/tensor/dtype.h"

#include <algorithm>
#include <cmath>

namespace comoe::tensor {

absl::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBf16:
      return "BF16";
    case DType::kF16:
      return "F16";
  }
  return "unknown";
}

std::uint16_t FloatToBf16(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  }
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<std::uint16_t>(bits >> 16);
}

float F16ToFloat(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t FloatToF16(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) {
    return static_cast<std::uint16_t>(sign | 0x7e00);
  }
  if (magnitude >= 65520.0F) {  // rounds to beyond the largest finite value, 65504
    return static_cast<std::uint16_t>(sign | 0x7c00);
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = m * 2^exponent, m in [0.5, 1)
  // The unit in the last place: 2^-24 for subnormals, 2^(exponent - 11) otherwise.
  const int ulp = std::max(exponent - 11, -24);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -ulp)));
  if (units < 1024) {
    return static_cast<std::uint16_t>(sign | units);
  }
  // 2048 units is the next power of two: the carry moves into the exponent by plain addition.
  return static_cast<std::uint16_t>(sign | (((ulp + 24) << 10) + units));
}

}  // namespace comoe::tensor
