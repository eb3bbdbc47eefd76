#include "scheduler/routing/lru_director.h"

#include "scheduler/routing/pooled_director.h"

namespace comoe::routing {
namespace {

// All experts are worth the same, so that the last use decides.
class LruDirector final : public PooledDirector {
 public:
  LruDirector(const TierShape& shape, const PolicyOptions& options) : PooledDirector(shape, options) {}
  absl::string_view policy() const override { return "lru"; }

 protected:
  double Value(base::ExpertKey /*key*/) const override { return 0.0; }
  void Learn(std::int32_t /*layer*/, absl::Span<const std::int32_t> /*experts*/) override {}
};

}  // namespace

std::unique_ptr<api::ExpertDirector> MakeLruDirector(const TierShape& shape, const PolicyOptions& options) {
  return std::make_unique<LruDirector>(shape, options);
}

}  // namespace comoe::routing
