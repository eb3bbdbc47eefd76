// The policy `naive`: nothing is kept on the device; what a layer needs is copied when it needs it.
#pragma once

#include <memory>

#include "engine/api/expert_director.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

std::unique_ptr<api::ExpertDirector> MakeNaiveDirector(const TierShape& shape, const PolicyOptions& options);

}  // namespace comoe::routing
