// The policy `simple`: a sliding window of recent rows says what to keep, what to prefetch for the next layer
// and what to hold in page-locked memory.
#pragma once

#include <memory>

#include "engine/api/expert_director.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// An expert's worth is how many rows of the window used it. After each layer: of the next MoE layer (after
// the last, of the next step's first) of the 2k experts of most uses at most k are prefetched, where they
// displace something clearly less used; of the layer itself, what is not on the device rises to the pinned
// tier likewise.
std::unique_ptr<api::ExpertDirector> MakeSimpleDirector(const TierShape& shape, const PolicyOptions& options);

}  // namespace comoe::routing
