// Holds the planner to what it promised: where misses measurably cost more than a static plan (all copied, or
// all on the host) would, the static plan is tried, and kept for as long as it is better.
#pragma once

#include <array>
#include <cstdint>

#include "scheduler/routing/split_planner.h"

namespace comoe::routing {

// Not thread-safe. Needs measured step times; without them the split stays.
class PlanJudge {
 public:
  explicit PlanJudge(double hysteresis) : hysteresis_(hysteresis) {}

  SplitKind kind() const { return kind_; }
  // What was planned for one layer of the step.
  void Planned(const PlannedSeconds& planned);
  // What misses really cost in the step whose plans were told.
  void Measured(double stall_seconds);

  bool fallen_back() const { return fallen_back_; }
  std::uint64_t num_fallbacks() const { return num_fallbacks_; }

 private:
  void Enter(SplitKind kind, std::int32_t num_steps);
  void JudgeSplit();
  void JudgeStatic();

  const double hysteresis_;
  SplitKind kind_ = SplitKind::kSplit;
  bool on_trial_ = false;  // a static plan
  bool fallen_back_ = false;
  std::uint64_t num_fallbacks_ = 0;
  // Of the step under way, by SplitKind.
  std::array<double, 3> planned_{};
  // Over the steps since Enter: measured, and what each plan was to take.
  double measured_sum_ = 0.0;
  std::array<double, 3> planned_sum_{};
  std::int32_t steps_left_ = 64;
  std::int32_t steps_to_next_ = 64;
  double split_ratio_ = 1.0;  // measured over planned, when the split was judged last
};

}  // namespace comoe::routing
