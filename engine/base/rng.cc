#include "engine/base/rng.h"

#include <sys/random.h>

#include "absl/time/clock.h"

namespace comoe::base {

std::uint64_t DrawSeed() {
  std::uint64_t seed = 0;
  if (::getrandom(&seed, sizeof seed, 0) != static_cast<ssize_t>(sizeof seed)) {
    seed = MixBits(static_cast<std::uint64_t>(absl::GetCurrentTimeNanos()));
  }
  return seed;
}

}  // namespace comoe::base
