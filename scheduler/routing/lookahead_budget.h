// How many layers ahead the engine applies routers early, so that this work stays a small share of a step.
#pragma once

#include <cstdint>

namespace comoe::routing {

// Steps that look ahead are looked at in windows. Several windows in a row above the limit cut the look-ahead
// to what fits; after a while one layer more is tried for one window, and kept if that leaves room. Each
// trial that fails makes the next one rarer. Not thread-safe.
class LookaheadBudget {
 public:
  static constexpr std::int32_t kWindowSteps = 8;
  static constexpr std::int32_t kPatience = 4;        // windows above the limit before a cut
  static constexpr std::int32_t kFirstWait = 128;     // windows from a cut to the first trial
  static constexpr std::int32_t kLongestWait = 4096;  // each that fails doubles it, up to this

  // `most`: layers; `limit`: share of a step's time; a trial has to stay `hysteresis` (a share) below it.
  LookaheadBudget(std::int32_t most, double limit, double hysteresis)
      : most_(most), limit_(limit), hysteresis_(hysteresis), width_(most) {}

  // One step: its time on the device's clock, and that of the look-ahead in it (0: none, or not measured).
  void Observe(double step_seconds, double lookahead_seconds);

  std::int32_t width() const { return width_; }
  // Of the last whole window's time.
  double share() const { return share_; }

 private:
  void EndWindow();
  void Cut();
  // What one layer more would take, as far as can be told.
  double ShareOfOneMore() const;

  const std::int32_t most_;
  const double limit_;
  const double hysteresis_;
  std::int32_t width_;
  double share_ = 0.0;
  // Of the window at hand.
  std::int32_t num_steps_ = 0;
  double step_seconds_ = 0.0;
  double lookahead_seconds_ = 0.0;

  bool trying_ = false;
  std::int32_t windows_above_ = 0;
  std::int32_t windows_to_wait_ = 0;
  std::int32_t wait_ = kFirstWait;
};

}  // namespace comoe::routing
