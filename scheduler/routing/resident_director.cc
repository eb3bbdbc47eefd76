#include "scheduler/routing/resident_director.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/routing/fixed_director.h"

namespace comoe::routing {
namespace {

class ResidentDirector final : public api::ExpertDirector {
 public:
  explicit ResidentDirector(std::int32_t num_experts) {
    slots_.slot.resize(static_cast<std::size_t>(num_experts));
    std::iota(slots_.slot.begin(), slots_.slot.end(), 0);
  }

  absl::string_view policy() const override { return "resident"; }
  void BeginStep(const api::StepPlan& /*plan*/) override {}
  // Slots are counted per layer, so that one map serves all of them.
  const api::SlotMap& slots(std::int32_t /*layer*/) const override { return slots_; }
  void DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> /*misses*/,
                    const api::LaneState& /*lanes*/, absl::Span<api::MissDecision> decisions) override {
    std::fill(decisions.begin(), decisions.end(), api::MissDecision{});
  }
  void ObserveRouting(const api::RoutingObservation& /*observation*/) override {}
  void EndStep() override {}

 private:
  api::SlotMap slots_;  // constant after construction
};

}  // namespace

std::unique_ptr<api::ExpertDirector> MakeResidentDirector(const api::ModelInfo& model) {
  return std::make_unique<ResidentDirector>(model.num_experts);
}

absl::StatusOr<std::unique_ptr<api::ExpertDirector>> MakeResidentDirector(const TierShape& shape,
                                                                          const PolicyOptions& options) {
  if (shape.device_slots < shape.num_moe_experts()) {
    return absl::FailedPreconditionError(absl::StrCat("policy resident needs a device slot for each of ",
                                                      shape.num_moe_experts(), " experts, and there are ",
                                                      shape.device_slots));
  }
  return std::make_unique<FixedDirector>("resident", shape, options, shape.num_moe_experts());
}

}  // namespace comoe::routing
