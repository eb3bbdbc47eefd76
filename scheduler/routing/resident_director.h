// The policy `resident`: every expert is on the device from the start and stays there.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/api/expert_director.h"
#include "engine/api/model_info.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// For devices that compute experts where they lie: the slot map says, for every layer, that expert e is in
// slot e of the layer. There is nothing to order and nothing to decide; should the engine ask about misses
// all the same, each passes through a staging slot. Owned by the engine thread.
std::unique_ptr<api::ExpertDirector> MakeResidentDirector(const api::ModelInfo& model);

// For a device with one pool of slots, filled at start. FAILED_PRECONDITION if they do not hold every expert.
absl::StatusOr<std::unique_ptr<api::ExpertDirector>> MakeResidentDirector(const TierShape& shape,
                                                                          const PolicyOptions& options);

}  // namespace comoe::routing
