#include "scheduler/routing/static_director.h"

#include <algorithm>

#include "scheduler/routing/fixed_director.h"

namespace comoe::routing {

std::unique_ptr<api::ExpertDirector> MakeStaticDirector(const TierShape& shape,
                                                        const PolicyOptions& options) {
  return std::make_unique<FixedDirector>("static", shape, options,
                                         std::min(shape.device_slots, shape.num_moe_experts()));
}

}  // namespace comoe::routing
