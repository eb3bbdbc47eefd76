// Whether routers applied early are worth their time: what the guesses that come of them save, against what
// the look-ahead takes. Where there is next to nothing to be early for, it stops.
#pragma once

#include <cstdint>

namespace comoe::routing {

// Nothing is saved where nobody waits: what is left of waiting has to be a multiple of what look-ahead takes.
// Beyond that, steps are looked at in windows. One that did not pay switches the look-ahead off, until a
// window is tried again; each trial that fails makes the next one rarer. Not thread-safe.
class ScoreJudge {
 public:
  static constexpr std::int32_t kWindowSteps = 32;
  static constexpr std::int32_t kFirstWait = 4;     // windows from switching off to the first trial
  static constexpr std::int32_t kLongestWait = 64;  // and from a failed trial to the next, at most

  // A trial has to save that share more than it costs.
  explicit ScoreJudge(double hysteresis) : hysteresis_(hysteresis) {}

  // One step: seconds that the look-ahead took on the device (0: none, or not measured), seconds of waiting
  // that guesses saved, less what they cost others, and seconds of waiting that were left.
  void Observe(double look_ahead_seconds, double saved_seconds, double stall_seconds);

  bool on() const { return on_ && hopeful_; }

 private:
  void EndWindow();

  const double hysteresis_;
  bool on_ = true;
  bool hopeful_ = true;  // there is enough waiting left for the look-ahead to pay at all
  bool trying_ = false;
  double cost_of_step_ = 0.0;   // with look-ahead, of late
  double stall_of_step_ = 0.0;  // of late
  std::int32_t num_steps_ = 0;  // of the window at hand
  double cost_ = 0.0, saved_ = 0.0;
  std::int32_t wait_ = kFirstWait, windows_left_ = 0;
};

}  // namespace comoe::routing
