#include "scheduler/routing/plan_judge.h"

#include <algorithm>
#include <cstddef>

namespace comoe::routing {
namespace {

// Steps after which a plan is judged, and that a trial of another takes.
constexpr std::int32_t kStepsToJudge = 64;
constexpr std::int32_t kStepsOfTrial = 8;
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
  const double split = planned_sum_[Index(SplitKind::kSplit)];
  if (kind_ == SplitKind::kSplit) {
    split_ratio_ = measured_sum_ / split;
    if (on_trial_) {
      // The split was tried again after a while of the static plan; that had cost measured over its promise.
      on_trial_ = false;
    }
    const SplitKind cheaper = planned_sum_[Index(SplitKind::kCopyOnly)] <= planned_sum_[Index(SplitKind::kHostOnly)]
                                  ? SplitKind::kCopyOnly
                                  : SplitKind::kHostOnly;
    const bool worse_than_promised =
        measured_sum_ > (1.0 + hysteresis_) * std::max(planned_sum_[Index(cheaper)], split);
    if (worse_than_promised) {
      better_static_ = cheaper;
      on_trial_ = true;
      Enter(better_static_, kStepsOfTrial);
    } else {
      fallen_back_ = false;
      Enter(SplitKind::kSplit, kStepsToJudge);
    }
    return;
  }
  // What the split would have cost in these steps, going by how it kept its promises.
  const bool better = measured_sum_ * (1.0 + hysteresis_) < split_ratio_ * split;
  on_trial_ = false;
  if (better) {
    num_fallbacks_ += fallen_back_ ? 0 : 1;
    fallen_back_ = true;
    Enter(better_static_, steps_between_trials_);
    // At the end of that the comparison is made again, on the old ratio: try the split in between.
    split_ratio_ *= 1.0 - 0.5 * hysteresis_;
  } else {
    steps_between_trials_ = std::min(2 * steps_between_trials_, kMostSteps);
    fallen_back_ = false;
    Enter(SplitKind::kSplit, steps_between_trials_);
  }
}

}  // namespace comoe::routing
