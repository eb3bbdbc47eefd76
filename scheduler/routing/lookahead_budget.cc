#include "scheduler/routing/lookahead_budget.h"

#include <algorithm>

namespace comoe::routing {

void LookaheadBudget::Observe(double step_seconds, double lookahead_seconds) {
  // The limit is for the steps that look ahead, however few they are.
  if (lookahead_seconds <= 0.0 && width_ > 0) {
    return;
  }
  step_seconds_ += step_seconds;
  lookahead_seconds_ += lookahead_seconds;
  if (++num_steps_ < kWindowSteps) {
    return;
  }
  share_ = step_seconds_ > 0.0 ? lookahead_seconds_ / step_seconds_ : 0.0;
  EndWindow();
  num_steps_ = 0;
  step_seconds_ = 0.0;
  lookahead_seconds_ = 0.0;
}

void LookaheadBudget::EndWindow() {
  if (trying_) {
    trying_ = false;
    if (share_ > limit_ * (1.0 - hysteresis_)) {
      --width_;
      wait_ = std::min(2 * wait_, kLongestWait);
    } else {
      wait_ = kFirstWait;
    }
    windows_to_wait_ = wait_;
    return;
  }
  windows_above_ = share_ > limit_ ? windows_above_ + 1 : 0;
  if (windows_above_ >= kPatience) {
    Cut();
  } else if (width_ < most_ && --windows_to_wait_ <= 0) {
    if (ShareOfOneMore() <= limit_ * (1.0 - hysteresis_)) {
      ++width_;
      trying_ = true;
    } else {
      windows_to_wait_ = wait_;
    }
  }
}

void LookaheadBudget::Cut() {
  const auto fits = static_cast<std::int32_t>(static_cast<double>(width_) * limit_ / share_);
  width_ = std::clamp(fits, 0, width_ - 1);
  windows_above_ = 0;
  windows_to_wait_ = wait_;
}

// Without any look-ahead only a trial tells.
double LookaheadBudget::ShareOfOneMore() const {
  return width_ == 0 ? 0.0 : share_ * static_cast<double>(width_ + 1) / static_cast<double>(width_);
}

}  // namespace comoe::routing
