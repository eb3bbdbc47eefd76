// Forecasts on the engine thread for as long as they are cheap there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "scheduler/routing/demand.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Steps whose share spent in the predictor is looked at together, and the share that is too much. Two such
// windows in a row move the predictor to a thread of its own (hub_worker.h), between two steps and for good:
// there a late forecast costs recall, here an early one costs time.
inline constexpr std::int32_t kPredictorWindowSteps = 64;
inline constexpr double kMostPredictorShare = 0.02;

// `clock`: seconds, monotonic; a step lasts from its BeginStep to the last call before the next. Where time
// is virtual there is nothing to measure: use MakeInlineForecaster. `look_ahead`: as MakeHubWorker.
std::unique_ptr<DemandForecaster> MakeMovingForecaster(const TierShape& shape,
                                                       std::shared_ptr<RowPredictor> predictor,
                                                       std::int32_t look_ahead,
                                                       std::function<double()> clock);

}  // namespace comoe::routing
