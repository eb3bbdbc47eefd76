// Whether routers applied early are worth their time: what the guesses that come of them save, against what
// the look-ahead takes. Where there is next to nothing to be early for, it stops.
#pragma once

#include <cstdint>

namespace comoe::routing {

// Nothing is saved where nobody waits: what is left of waiting has to be a multiple of what look-ahead takes.
// Beyond that there is a fading balance of what was saved and what it took. Each trial starts with credit for
// a few steps; when the balance is used up the look-ahead stops for a while, and each trial that never paid
// makes the next one rarer. Not thread-safe.
class ScoreJudge {
 public:
  // What a trial may take in vain, in steps; it fades, too. The first one meets a cold start, whose misses a
  // guess that comes true saves at once, and which ends by itself.
  static constexpr double kFirstCredit = 4.0;
  static constexpr double kCredit = 12.0;
  static constexpr std::int32_t kFirstWait = 128;  // steps with hope from switching off to the next trial
  static constexpr std::int32_t kLongestWait = 4096;

  // What makes a trial a success: that share more than it costs.
  explicit ScoreJudge(double hysteresis) : hysteresis_(hysteresis) {}

  // One step: seconds that the look-ahead took on the device (0: none, or not measured), seconds of waiting
  // that guesses saved, less what they cost others, and seconds of waiting that were left.
  void Observe(double look_ahead_seconds, double saved_seconds, double stall_seconds);

  bool on() const { return on_ && hopeful_; }

 private:
  const double hysteresis_;
  bool on_ = true;
  bool hopeful_ = true;         // there is enough waiting left for the look-ahead to pay at all
  bool paid_ = false;           // since it was switched on
  double cost_of_step_ = 0.0;   // with look-ahead, of late
  double stall_of_step_ = 0.0;  // of late
  double balance_ = 0.0;        // seconds
  std::int32_t wait_ = kFirstWait, steps_left_ = 0;
};

}  // namespace comoe::routing
