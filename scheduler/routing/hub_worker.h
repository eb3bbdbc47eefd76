// The predictors on a thread of their own: the engine thread posts what it saw and reads the latest forecast;
// it never waits for one.
#pragma once

#include <cstdint>
#include <memory>

#include "scheduler/routing/demand.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Observations are copied into a mailbox of fixed size. If it is full, the rest of the step is dropped and
// counted: the predictor learns less, the step goes on. A forecast is made when the routing of the layer
// before, or its scores, come in; one that is not there when it is asked for counts as late, and the one
// before is given. Ending it waits for the predictor's call at hand.
//
// `look_ahead`: 0 if there will be no scores in the first step. In a step after one that had none, forecasts
// are made from the routing alone.
std::unique_ptr<DemandForecaster> MakeHubWorker(const TierShape& shape,
                                                std::shared_ptr<RowPredictor> predictor,
                                                std::int32_t look_ahead);

}  // namespace comoe::routing
