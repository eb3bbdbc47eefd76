#include "scheduler/routing/score_judge.h"

#include <algorithm>

namespace comoe::routing {
namespace {

// Of the waiting that is left, the share that guesses can be hoped to save, as recorded routing shows.
constexpr double kMostSaved = 1.0 / 3.0;
// How fast measured seconds of a step are followed; waiting that ends, as after a cold start, is let go
// sooner.
constexpr double kFade = 0.9;
constexpr double kFadeDown = 0.7;
// What old savings and costs still count a step later: outcomes are few, so that some tens of steps decide.
constexpr double kBalanceFade = 0.97;

}  // namespace

void ScoreJudge::Observe(double look_ahead_seconds, double saved_seconds, double stall_seconds) {
  const double fade = stall_seconds < stall_of_step_ ? kFadeDown : kFade;
  stall_of_step_ = stall_of_step_ * fade + stall_seconds * (1.0 - fade);  // from nothing: one step is no news
  if (look_ahead_seconds > 0.0) {
    if (cost_of_step_ <= 0.0) {
      cost_of_step_ = look_ahead_seconds;
      balance_ = kFirstCredit * cost_of_step_;
    }
    cost_of_step_ = cost_of_step_ * kFade + look_ahead_seconds * (1.0 - kFade);
  }
  hopeful_ = cost_of_step_ <= kMostSaved * stall_of_step_;
  if (cost_of_step_ <= 0.0 || !hopeful_) {
    return;
  }
  if (!on_) {
    if (--steps_left_ <= 0) {
      on_ = true;
      paid_ = false;
      balance_ = kCredit * cost_of_step_;
    }
    return;
  }
  balance_ = balance_ * kBalanceFade + saved_seconds - look_ahead_seconds;
  if (balance_ > (1.0 + hysteresis_) * kCredit * cost_of_step_) {
    paid_ = true;
    wait_ = kFirstWait;
  } else if (balance_ < 0.0) {
    on_ = false;
    steps_left_ = wait_;
    wait_ = paid_ ? kFirstWait : std::min(2 * wait_, kLongestWait);
  }
}

}  // namespace comoe::routing
