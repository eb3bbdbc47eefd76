#include "scheduler/routing/plan_judge.h"

#include <algorithm>
#include <cstddef>

namespace comoe::routing {
namespace {

// Steps after which the split is judged, and that a trial takes.
constexpr std::int32_t kStepsToJudge = 64;
constexpr std::int32_t kStepsOfTrial = 8;
// Of a static plan that proved better, before the split is tried again.
constexpr std::int32_t kStepsOfStatic = 512;
// After a trial that was for nothing the next is twice as far off, up to this.
constexpr std::int32_t kMostSteps = 8192;

constexpr std::size_t Index(SplitKind kind) { return static_cast<std::size_t>(kind); }

}  // namespace

void PlanJudge::Planned(const PlannedSeconds& planned) {
  planned_[Index(SplitKind::kSplit)] += kind_ == SplitKind::kSplit ? planned.chosen : planned.split;
  planned_[Index(SplitKind::kCopyOnly)] += planned.copy_only;
  planned_[Index(SplitKind::kHostOnly)] += planned.host_only;
}

void PlanJudge::Enter(SplitKind kind, std::int32_t num_steps) {
  kind_ = kind;
  steps_left_ = num_steps;
  measured_sum_ = 0.0;
  planned_sum_.fill(0.0);
}

void PlanJudge::Measured(double stall_seconds) {
  const bool any = planned_[Index(SplitKind::kSplit)] > 0.0;
  if (any && stall_seconds >= 0.0) {
    measured_sum_ += stall_seconds;
    for (std::size_t i = 0; i < planned_.size(); ++i) {
      planned_sum_[i] += planned_[i];
    }
    --steps_left_;
  }
  planned_.fill(0.0);
  if (steps_left_ > 0) {
    return;
  }
  if (kind_ == SplitKind::kSplit) {
    JudgeSplit();
  } else if (on_trial_) {
    JudgeStatic();
  } else {
    Enter(SplitKind::kSplit, kStepsOfTrial);  // it may do better by now
  }
}

void PlanJudge::JudgeSplit() {
  const double copy_only = planned_sum_[Index(SplitKind::kCopyOnly)];
  const double host_only = planned_sum_[Index(SplitKind::kHostOnly)];
  split_ratio_ = measured_sum_ / planned_sum_[Index(SplitKind::kSplit)];
  if (measured_sum_ > (1.0 + hysteresis_) * std::min(copy_only, host_only)) {
    on_trial_ = true;
    Enter(copy_only <= host_only ? SplitKind::kCopyOnly : SplitKind::kHostOnly, kStepsOfTrial);
  } else {
    fallen_back_ = false;
    Enter(SplitKind::kSplit, kStepsToJudge);
  }
}

void PlanJudge::JudgeStatic() {
  on_trial_ = false;
  // What the split would have cost in these steps, going by how it kept its promises.
  const double split = split_ratio_ * planned_sum_[Index(SplitKind::kSplit)];
  if (measured_sum_ * (1.0 + hysteresis_) < split) {
    num_fallbacks_ += fallen_back_ ? 0 : 1;
    fallen_back_ = true;
    Enter(kind_, kStepsOfStatic);
  } else {
    fallen_back_ = false;
    steps_to_next_ = std::min(2 * steps_to_next_, kMostSteps);
    Enter(SplitKind::kSplit, steps_to_next_);
  }
}

}  // namespace comoe::routing
