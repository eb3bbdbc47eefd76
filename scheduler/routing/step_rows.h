// Which rows of a step are decodes: the working set that prefill rows must not displace and that predictors
// learn from. Not thread-safe; allocates only when a step has more rows than any before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/api/step_plan.h"

namespace comoe::routing {

class StepRows {
 public:
  // `cold_rows`: how many prefill rows of a layer are learnt from as long as nothing was ever decoded.
  explicit StepRows(std::int32_t cold_rows) : cold_rows_(cold_rows) {}

  // A span of one row behind what is in the state already is a decode; anything else is prefill.
  void BeginStep(const api::StepPlan& plan);
  // Row t in the order of the plan's spans; false beyond them.
  bool is_decode(std::size_t row) const { return row < is_decode_.size() && is_decode_[row] != 0; }
  // The rows [n, k] of a layer's routing to learn from: the decodes, or at a cold start the last few rows.
  // Valid until the next call.
  absl::Span<const std::int32_t> Learnable(const api::RoutingObservation& observation);
  // Nothing was decoded so far: the current step counts.
  bool cold() const { return cold_; }

 private:
  const std::int32_t cold_rows_;
  bool cold_ = true;
  std::size_t num_decodes_ = 0;
  std::vector<std::uint8_t> is_decode_;  // [T]
  std::vector<std::int32_t> learnable_;  // [n, k]
};

}  // namespace comoe::routing
