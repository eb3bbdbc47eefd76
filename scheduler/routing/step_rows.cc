#include "scheduler/routing/step_rows.h"

#include <algorithm>

namespace comoe::routing {

void StepRows::BeginStep(const api::StepPlan& plan) {
  is_decode_.clear();
  num_decodes_ = 0;
  for (const api::PlanSpan& span : plan.spans) {
    const bool decode = span.tokens.size() == 1 && span.start_position > 0;
    is_decode_.insert(is_decode_.end(), span.tokens.size(), decode ? 1 : 0);
    num_decodes_ += decode ? 1 : 0;
  }
  cold_ = cold_ && num_decodes_ == 0;
}

absl::Span<const std::int32_t> StepRows::Learnable(const api::RoutingObservation& observation) {
  const auto k = static_cast<std::size_t>(observation.experts_per_token);
  if (k == 0) {
    return {};
  }
  const std::size_t num_rows = observation.experts.size() / k;
  if (cold_) {
    const std::size_t num_taken = std::min(num_rows, static_cast<std::size_t>(cold_rows_));
    return observation.experts.subspan((num_rows - num_taken) * k);
  }
  if (num_decodes_ == num_rows) {
    return observation.experts;
  }
  learnable_.clear();
  for (std::size_t t = 0; t < num_rows; ++t) {
    if (is_decode(t)) {
      const absl::Span<const std::int32_t> row = observation.experts.subspan(t * k, k);
      learnable_.insert(learnable_.end(), row.begin(), row.end());
    }
  }
  return learnable_;
}

}  // namespace comoe::routing
