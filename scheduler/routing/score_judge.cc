#include "scheduler/routing/score_judge.h"

#include <algorithm>

namespace comoe::routing {
namespace {

// Of the waiting that is left, the share that guesses can be hoped to save; recorded routing shows a third.
constexpr double kMostSaved = 0.5;
// How fast costs of a step follow.
constexpr double kFade = 0.9;

void Follow(double measured, double* steady) {
  *steady = *steady > 0.0 ? *steady * kFade + measured * (1.0 - kFade) : measured;
}

}  // namespace

void ScoreJudge::Observe(double look_ahead_seconds, double saved_seconds, double stall_seconds) {
  Follow(stall_seconds, &stall_of_step_);
  if (look_ahead_seconds > 0.0) {
    Follow(look_ahead_seconds, &cost_of_step_);
  }
  hopeful_ = cost_of_step_ <= kMostSaved * stall_of_step_;
  if (!hopeful_) {
    num_steps_ = 0;
    cost_ = saved_ = 0.0;
    return;
  }
  cost_ += look_ahead_seconds;
  saved_ += saved_seconds;
  if (++num_steps_ == kWindowSteps) {
    EndWindow();
    num_steps_ = 0;
    cost_ = saved_ = 0.0;
  }
}

void ScoreJudge::EndWindow() {
  if (!on_) {
    on_ = trying_ = --windows_left_ <= 0;
    return;
  }
  const bool pays = cost_ <= 0.0 || saved_ >= cost_ * (trying_ ? 1.0 + hysteresis_ : 1.0);
  if (!pays) {
    wait_ = trying_ ? std::min(2 * wait_, kLongestWait) : wait_;
    windows_left_ = wait_;
    on_ = false;
  } else if (trying_) {
    wait_ = kFirstWait;
  }
  trying_ = false;
}

}  // namespace comoe::routing
