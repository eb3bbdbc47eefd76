// One forward pass over the rows of a step: embed, all decoder layers, and logits of the rows that want them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/step_plan.h"
#include "engine/model/rope_table.h"
#include "engine/model/step_context.h"
#include "engine/model/weights.h"

namespace comoe::model {

// Owned by the engine thread; everything in the context outlives it.
class ForwardPass {
 public:
  ForwardPass(const ModelWeights& weights, StepContext context);

  // Runs the plan's rows, in plan order. The plan has been checked. Calls logits(row, values) for every row
  // of the step that wants logits, rows ascending; values are [V] and valid during the call.
  using LogitsSink = absl::FunctionRef<absl::Status(std::int64_t row, absl::Span<const float> values)>;
  absl::Status Run(const api::StepPlan& plan, LogitsSink logits);

 private:
  void SetRows(const api::StepPlan& plan);
  void Abandon();
  absl::Status ComputeLogits(LogitsSink logits);

  const ModelWeights& weights_;
  const RopeTable rope_;
  StepContext context_;
  std::vector<base::TokenId> tokens_;
  std::vector<std::int64_t> logits_rows_;
};

}  // namespace comoe::model
