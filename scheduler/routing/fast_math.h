// Logarithms and exponentials to three digits, without a branch or a call, so that loops over experts run in
// vector registers. The same bits on every machine that does not contract multiplications and additions.
#pragma once

#include <bit>
#include <cstdint>

namespace comoe::routing {

// By value, unlike std::clamp, so that a loop has no branch. NaN becomes `low`.
inline float CutTo(float x, float low, float high) {
  const float above = x > low ? x : low;
  return above < high ? above : high;
}

// Natural logarithm of x in (0, 1e30]: exponent, and a polynomial for the mantissa. Error below 1e-3.
inline float FastLog(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  const auto exponent = static_cast<float>((bits >> 23) - 127);
  const auto m = std::bit_cast<float>((bits & 0x007fffff) | 0x3f800000);
  // Least squares of log2 on [1, 2).
  const float log2 =
      -2.49676733F + m * (4.02835717F + m * (-2.08104649F + m * (0.62881057F + m * -0.07914967F)));
  return (exponent + log2) * 0.69314718F;
}

// e^x, x cut to [-80, 80]. Relative error below 2e-3.
inline float FastExp(float x) {
  const float y = CutTo(x, -80.0F, 80.0F) * 1.44269504F + 127.0F;
  const auto whole = static_cast<std::int32_t>(y);  // y > 0
  const float part = y - static_cast<float>(whole);
  const auto power = std::bit_cast<float>(whole << 23);
  return power * (1.0F + part * (0.69503605F + part * (0.22830876F + part * 0.07665519F)));
}

inline float FastSigmoid(float z) { return 1.0F / (1.0F + FastExp(-z)); }

// log(p / (1 - p)), p cut to [floor, 1 - floor].
inline float FastLogit(float p, float floor = 1e-3F) {
  const float q = CutTo(p, floor, 1.0F - floor);
  return FastLog(q / (1.0F - q));
}

}  // namespace comoe::routing
