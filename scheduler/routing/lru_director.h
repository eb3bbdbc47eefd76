// The policy `lru`: experts are kept on demand, and the least recently used makes room.
#pragma once

#include <memory>

#include "engine/api/expert_director.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

std::unique_ptr<api::ExpertDirector> MakeLruDirector(const TierShape& shape, const PolicyOptions& options);

}  // namespace comoe::routing
