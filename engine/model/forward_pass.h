// One forward pass over the rows of a step: embed, all decoder layers, and logits of the rows that want them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/step_plan.h"
#include "engine/model/rope_table.h"
#include "engine/model/step_context.h"
#include "engine/model/weights.h"

namespace comoe::model {

// What is handed over of a row's logits, valid during the call. One of them is empty.
struct RowLogits {
  absl::Span<const float> all;  // [V]
  // The highest, first in front, as kernels::TopLogits orders them: at least as many as were wanted.
  absl::Span<const base::TokenId> best_ids;
  absl::Span<const float> best;
};
// How many of the highest logits are enough for row `row` of the span: at least 1 and at most V and
// kernels::kMostTopLogits; 0: all are needed.
using BestWanted = absl::FunctionRef<std::int64_t(const api::PlanSpan& span, std::int64_t row)>;

// Owned by the engine thread; everything in the context outlives it.
class ForwardPass {
 public:
  ForwardPass(const ModelWeights& weights, StepContext context);

  // Runs the plan's rows, in plan order. The plan has been checked. Calls logits(row, values) for every row
  // of the step that wants logits, rows ascending.
  using LogitsSink = absl::FunctionRef<absl::Status(std::int64_t row, const RowLogits& values)>;
  absl::Status Run(const api::StepPlan& plan, BestWanted best_wanted, LogitsSink logits);

 private:
  void SetRows(const api::StepPlan& plan, BestWanted best_wanted);
  absl::Status RunLayers();
  absl::Status Prepare();
  // From layer `first` up to where the host decides, and that layer. Returns the layer that is next.
  absl::StatusOr<std::int32_t> RunStretch(std::int32_t first);
  void Abandon();
  absl::Status ComputeLogits(LogitsSink logits);
  absl::StatusOr<std::int64_t> FetchLogits(absl::Span<const std::int64_t> best_wanted);

  const ModelWeights& weights_;
  const RopeTable rope_;
  StepContext context_;
  bool captures_ = false;  // this step's stretches
  std::int64_t context_bound_ = 0;
  std::vector<base::TokenId> tokens_;
  std::vector<std::int64_t> logits_rows_;
  std::vector<std::int64_t> best_wanted_;  // of each of them
};

}  // namespace comoe::model
