// That a StepPlan can be run: nothing of it is trusted before this has passed.
#pragma once

#include "absl/status/status.h"
#include "engine/api/engine.h"
#include "engine/api/step_plan.h"

namespace comoe::runtime {

// INVALID_ARGUMENT names span and field.
absl::Status CheckPlan(const api::StepPlan& plan, const api::ModelInfo& info,
                       const api::EngineCapacity& capacity);

}  // namespace comoe::runtime
