#include "engine/sampling/logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace comoe::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Independent accumulators: the compiler vectorises over them, and the order of additions stays fixed.
constexpr std::size_t kLanes = 8;
// Of the search for the highest: too many to be unrolled into scalar code (measured: six times as fast as 8).
constexpr std::size_t kScanLanes = 64;
// Long enough to make joining the lanes cheap, short enough to make looking for the place of the highest so.
constexpr std::size_t kBlock = 2048;

// exp(x) for x <= 0, relative error under 3e-7 (Taylor to degree 7 after taking out a power of two); 0 below
// -87, where the result would leave the normal floats. Own code rather than libm's: it vectorises, and libm's
// last bit depends on the CPU it dispatches to, which would make draws differ between machines.
inline float ExpNonPositive(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kLeast = 1.65e-38F;  // just above exp(kLowest)
  constexpr float kRound =
      12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const float clamped = x > kLowest ? x : kLowest;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts, the first short enough for n * it to be exact.
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const float scale = std::bit_cast<float>((exponent + 127) << 23);
  const float result = p * scale;
  return result > kLeast ? result : 0.0F;  // a test of x would be merged with the first one into a branch
}

}  // namespace

HighestLogit FindHighest(absl::Span<const float> logits) {
  HighestLogit highest;
  highest.value = -kInfinity;
  std::size_t place = 0;  // of the first block that has it
  std::array<std::int32_t, kScanLanes> nan = {};
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const float* const block = logits.data() + begin;
    const std::size_t size = std::min(kBlock, logits.size() - begin);
    std::array<float, kScanLanes> lanes;
    lanes.fill(-kInfinity);
    for (std::size_t i = 0; i < size; i += kScanLanes) {
      const std::size_t count = std::min(kScanLanes, size - i);
      for (std::size_t lane = 0; lane < count; ++lane) {
        const float x = block[i + lane];
        lanes[lane] = x > lanes[lane] ? x : lanes[lane];
        nan[lane] |= static_cast<std::int32_t>(x != x);
      }
    }
    if (const float value = *std::max_element(lanes.begin(), lanes.end()); value > highest.value) {
      highest.value = value;
      place = begin;
    }
  }
  const auto from = logits.begin() + static_cast<std::ptrdiff_t>(place);
  highest.index = static_cast<std::size_t>(std::find(from, logits.end(), highest.value) - logits.begin());
  highest.any_nan = std::any_of(nan.begin(), nan.end(), [](std::int32_t flag) { return flag != 0; });
  return highest;
}

absl::Status CheckHighest(const HighestLogit& highest) {
  if (highest.any_nan) {
    return absl::InternalError("logits contain NaN");
  }
  if (highest.value == kInfinity) {
    return absl::InternalError("logits contain +infinity");
  }
  if (highest.value == -kInfinity) {
    return absl::InternalError("there are no logits, or every one is -infinity");
  }
  return absl::OkStatus();
}

void FillWeights(absl::Span<const float> logits, float highest, float inverse_temperature,
                 std::vector<float>& weights) {
  weights.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = ExpNonPositive((logits[i] - highest) * inverse_temperature);
  }
}

double Sum(absl::Span<const float> weights) {
  std::array<double, kLanes> sums = {};
  const std::size_t whole = weights.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(weights[i + lane]);
    }
  }
  for (std::size_t i = whole; i < weights.size(); ++i) {
    sums[i - whole] += static_cast<double>(weights[i]);
  }
  double total = 0.0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace comoe::sampling
