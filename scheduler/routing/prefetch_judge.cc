#include "scheduler/routing/prefetch_judge.h"

#include <algorithm>

namespace comoe::routing {
namespace {

// An outcome still counts for this much when the next comes in: about the last two hundred decide.
constexpr double kFade = 0.995;
// Outcomes before there is a verdict.
constexpr double kFewest = 24.0;
// While off: a probe in so many turns, at first; each that changes nothing makes the next twice as rare.
constexpr std::uint32_t kFirstTurns = 64;
constexpr std::uint32_t kMostTurns = 1024;

}  // namespace

std::int32_t PrefetchJudge::Allowed(std::size_t distance, std::int32_t wanted) {
  Arm& arm = arms_[distance];
  if (arm.on) {
    return wanted;
  }
  if (wanted <= 0 || ++arm.turns < arm.turns_between) {
    return 0;
  }
  arm.turns = 0;
  return 1;
}

void PrefetchJudge::Outcome(std::size_t distance, bool right, double saved_seconds, double lost_seconds) {
  Arm& arm = arms_[distance];
  (right ? arm.num_right : arm.num_wrong) += 1;
  net_seconds_ += distance > 0 ? saved_seconds - lost_seconds : 0.0;
  // A probe counts more: there are few of them.
  const double fade = arm.on ? kFade : 0.9;
  arm.saved = arm.saved * fade + saved_seconds;
  arm.lost = arm.lost * fade + lost_seconds;
  arm.weight = arm.weight * fade + 1.0;
  arm.right = arm.right * fade + (right ? 1.0 : 0.0);
  if (arm.on) {
    if (arm.weight >= kFewest && arm.saved < arm.lost) {
      arm.on = false;
      arm.turns = 0;
      arm.turns_between = std::max(arm.turns_between, kFirstTurns);
    }
  } else if (arm.saved > (1.0 + hysteresis_) * arm.lost) {
    arm.on = true;
    arm.turns_between = kFirstTurns;
  } else {
    arm.turns_between = std::min(2 * arm.turns_between, kMostTurns);
  }
}

double PrefetchJudge::precision(std::size_t distance) const {
  const Arm& arm = arms_[distance];
  return arm.weight > 0.0 ? arm.right / arm.weight : 0.0;
}

}  // namespace comoe::routing
