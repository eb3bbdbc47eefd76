// The policy `resident`: every expert is on the device from the start and stays there.
#pragma once

#include <memory>

#include "engine/api/expert_director.h"
#include "engine/api/model_info.h"

namespace comoe::routing {

// A director whose slot map says, for every layer, that expert e is in slot e. There is nothing to decide:
// should the engine ask about misses all the same, each is answered with kHost. Owned by the engine thread.
std::unique_ptr<api::ExpertDirector> MakeResidentDirector(const api::ModelInfo& model);

}  // namespace comoe::routing
