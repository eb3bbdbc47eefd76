// The feed-forward half of a decoder layer: routed experts (and a shared one), or one dense FFN.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/step_context.h"
#include "engine/model/weights.h"

namespace comoe::model {

// residual += ffn(norm(residual)). The router's choice goes to the director; experts are reached through
// leases, which are released when the layer's work is done.
absl::Status RunFfn(const StepContext& context, std::int64_t layer, const LayerWeights& weights);

// After a step with StepContext::resident, once the device is done: the director hears the routing of every layer.
void ReportResidentRouting(const StepContext& context);

}  // namespace comoe::model
