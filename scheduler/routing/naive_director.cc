#include "scheduler/routing/naive_director.h"

#include "scheduler/routing/fixed_director.h"

namespace comoe::routing {

std::unique_ptr<api::ExpertDirector> MakeNaiveDirector(const TierShape& shape, const PolicyOptions& options) {
  return std::make_unique<FixedDirector>("naive", shape, options, 0);
}

}  // namespace comoe::routing
