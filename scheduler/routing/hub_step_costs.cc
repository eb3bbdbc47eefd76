#include "scheduler/routing/hub_step_costs.h"

#include <algorithm>
#include <cmath>

namespace comoe::routing {
namespace {

// A step counts for this much at the next: several hundred steps, so that chunks of prefill are remembered
// among decodes.
constexpr double kFade = 0.998;
// Below this spread of sizes (variance, in rows^2) a slope says nothing.
constexpr double kLeastVariance = 0.25;
constexpr std::int64_t kMostRows = 512;

}  // namespace

void HubStepCosts::ObserveStep(std::int64_t rows, double seconds) {
  if (rows < 1 || !(seconds > 0.0) || !std::isfinite(seconds)) {
    return;
  }
  const auto x = static_cast<double>(rows);
  weight_ = weight_ * kFade + 1.0;
  rows_ = rows_ * kFade + x;
  seconds_ = seconds_ * kFade + seconds;
  rows_rows_ = rows_rows_ * kFade + x * x;
  rows_seconds_ = rows_seconds_ * kFade + x * seconds;
}

HubStepCosts::Line HubStepCosts::Fit() const {
  if (!(weight_ > 0.0)) {
    return {};
  }
  const double mean_rows = rows_ / weight_;
  const double mean_seconds = seconds_ / weight_;
  const double variance = rows_rows_ / weight_ - mean_rows * mean_rows;
  if (variance < kLeastVariance) {
    return {0.0, mean_seconds / mean_rows};
  }
  const double slope = (rows_seconds_ / weight_ - mean_rows * mean_seconds) / variance;
  // Neither a row nor a step is ever free.
  const double per_row = std::clamp(slope, 1e-3 * mean_seconds / mean_rows, mean_seconds / mean_rows);
  return {mean_seconds - per_row * mean_rows, per_row};
}

absl::Duration HubStepCosts::StepTime(std::int64_t rows, std::int64_t /*sequences*/) const {
  const Line line = Fit();
  return absl::Seconds(line.base + line.per_row * static_cast<double>(rows));
}

std::int64_t HubStepCosts::BreakEvenChunk() const {
  const Line line = Fit();
  return std::clamp<std::int64_t>(std::llround(line.base / line.per_row), 1, kMostRows);
}

}  // namespace comoe::routing
