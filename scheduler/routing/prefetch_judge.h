// Whether prefetching pays, by what it did: seconds of stall that right guesses saved against seconds that
// guesses held up certain copies. Judged for each distance ahead; where it does not pay it stops, but for a
// guess now and then to see whether that has changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "scheduler/routing/gate_lookahead.h"

namespace comoe::routing {

// Not thread-safe. Distances run from 0 (the next step's first layers) to kMaxLookAhead.
class PrefetchJudge {
 public:
  static constexpr std::size_t kNumDistances = std::size_t{kMaxLookAhead} + 1;

  explicit PrefetchJudge(double hysteresis) : hysteresis_(hysteresis) {}

  // Once for each layer and distance, before guesses are made: how many of them may be.
  std::int32_t Allowed(std::size_t distance, std::int32_t wanted);
  // What became of one guess. `saved_seconds`: of stall, 0 for a wrong one; `lost_seconds`: what it
  // displaced.
  void Outcome(std::size_t distance, bool right, double saved_seconds, double lost_seconds);

  // Certain copies found a guess of that distance on the link and waited for it so long.
  void HeldUp(std::size_t distance, double seconds) {
    arms_[distance].lost += seconds;
    net_seconds_ -= distance > 0 ? seconds : 0.0;
  }

  // Seconds that guesses of layers in the same step have saved so far, less what they cost.
  double net_seconds() const { return net_seconds_; }

  bool on(std::size_t distance) const { return arms_[distance].on; }
  double precision(std::size_t distance) const;
  std::uint64_t num_right(std::size_t distance) const { return arms_[distance].num_right; }
  std::uint64_t num_wrong(std::size_t distance) const { return arms_[distance].num_wrong; }

 private:
  struct Arm {
    bool on = true;
    double saved = 0.0, lost = 0.0;  // fading sums
    double weight = 0.0;             // of outcomes in them
    double right = 0.0;
    std::uint64_t num_right = 0, num_wrong = 0;
    std::uint32_t turns = 0;          // while off
    std::uint32_t turns_between = 0;  // probes
  };

  const double hysteresis_;
  std::array<Arm, kNumDistances> arms_{};
  double net_seconds_ = 0.0;
};

}  // namespace comoe::routing
