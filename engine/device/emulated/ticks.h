// Times of emulated devices: whole picoseconds since the device was made, so that sums are exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace comoe::device {

using Ticks = std::int64_t;
inline constexpr Ticks kNever = std::numeric_limits<Ticks>::max();
inline constexpr double kTicksPerSecond = 1e12;
inline constexpr Ticks kLongest = Ticks{1} << 62;  // 53 days: what takes longer takes that

// Below 0 counts as 0.
inline Ticks ToTicks(double seconds) {
  const double ticks = std::max(seconds, 0.0) * kTicksPerSecond;
  return ticks < static_cast<double>(kLongest) ? static_cast<Ticks>(std::llround(ticks)) : kLongest;
}
inline double ToSeconds(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerSecond; }

// `span` >= 0 after `at`, which is not kNever: at kLongest at the latest.
inline Ticks After(Ticks at, Ticks span) { return at > kLongest - span ? kLongest : at + span; }
// kNever for an infinite limit.
inline Ticks Deadline(Ticks from, absl::Duration limit) {
  return limit == absl::InfiniteDuration() ? kNever : After(from, ToTicks(absl::ToDoubleSeconds(limit)));
}

}  // namespace comoe::device
