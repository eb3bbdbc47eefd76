// The predictors that a trace can be replayed with, by name.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// In the order in which tables show them.
absl::Span<const absl::string_view> TracePredictorNames();
// INVALID_ARGUMENT lists the names.
absl::StatusOr<std::unique_ptr<RowPredictor>> MakeTracePredictor(absl::string_view name,
                                                                 const TierShape& shape);

}  // namespace comoe::routing
