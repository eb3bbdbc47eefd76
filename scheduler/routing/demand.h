// Rows' forecasts combined: what the batch will need of a layer. And who makes them: at once on the engine
// thread, or behind it on a thread of its own (hub_worker.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Of one MoE layer.
struct Demand {
  std::vector<float> probability;    // [E]: that any row needs the expert: 1 - prod(1 - p)
  std::vector<float> expected_rows;  // [E]
};

// probabilities: [T, E]. `demand` has room for E experts.
void CombineRows(absl::Span<const float> probabilities, std::size_t num_experts, Demand* demand);

// For the engine thread. All spans are copied or used before a call returns.
class DemandForecaster {
 public:
  virtual ~DemandForecaster() = default;
  // As RowPredictor.
  virtual void BeginStep(absl::Span<const base::TokenId> tokens) = 0;
  virtual void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) = 0;
  virtual void ObserveLookahead(std::int32_t layer, std::int32_t target, absl::Span<const float> logits) = 0;
  // The latest forecast for the layer, of this step or, if it is late, of an earlier one. Never waits. Valid
  // until the next call.
  virtual const Demand& Forecast(std::int32_t target) = 0;

  // A request that waits: what a chunk of these tokens would need. Replaces the hint before.
  virtual void Hint(absl::Span<const base::TokenId> tokens) = 0;
  // Null: no hint, or it was used for this layer already.
  virtual const Demand* TakeHint(std::int32_t layer) = 0;

  // Forecasts that were asked for before they were made, and observations for which there was no room.
  virtual std::uint64_t num_late() const = 0;
  virtual std::uint64_t num_dropped() const = 0;
  // Forecasts are not made by the caller.
  virtual bool on_own_thread() const = 0;

  // Contents of the predictor, for the hub's state. May wait; not between BeginStep and the end of a step.
  virtual void Append(std::vector<std::uint8_t>* bytes) = 0;
  virtual bool Restore(absl::Span<const std::uint8_t>* bytes) = 0;
};

// Everything at once, on the caller's thread: for replay, for virtual time, and where the predictor is cheap.
std::unique_ptr<DemandForecaster> MakeInlineForecaster(const TierShape& shape,
                                                       std::shared_ptr<RowPredictor> predictor);

}  // namespace comoe::routing
