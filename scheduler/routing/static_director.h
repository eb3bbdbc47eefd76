// The policy `static`: the experts that a trace used most are on the device, and that never changes.
#pragma once

#include <memory>

#include "engine/api/expert_director.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Without options.hot_counts the first experts of every layer stand in for the hottest: the caller warns.
std::unique_ptr<api::ExpertDirector> MakeStaticDirector(const TierShape& shape, const PolicyOptions& options);

}  // namespace comoe::routing
