// How the engine learns where experts are and what to do about those that are not there: the only path from
// the engine to the routing hub and to the simpler policies. Numbers only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::api {

// How a needed expert is served.
enum class ServingDecision : std::uint8_t {
  kHit,    // it is in a device slot
  kFetch,  // copy it, then compute on the device
  kHost    // the CPU computes it where it lies
};

// What a layer needs of one expert in this step.
struct ExpertDemand {
  base::ExpertKey key;
  std::int32_t rows = 0;  // at least 1
};

// Device slots of one MoE layer, published before a step. Hits are resolved from it without asking.
struct SlotMap {
  std::vector<std::int32_t> slot;  // [num_experts]; -1: not on the device
};

// One layer's routing, as it happened. May be handed over after the layer has run.
struct RoutingObservation {
  base::StepId step;
  std::int32_t layer = 0;
  std::int32_t experts_per_token = 0;      // k
  absl::Span<const std::int32_t> experts;  // [T, k], best first
  absl::Span<const float> weights;         // [T, k]
};

// Called by the engine thread. BeginStep, then per MoE layer: slots, DecideMisses if any expert is not in
// them, ObserveRouting; then EndStep.
class ExpertDirector {
 public:
  virtual ~ExpertDirector() = default;
  virtual absl::string_view policy() const = 0;
  virtual void BeginStep(const StepPlan& plan) = 0;
  // Valid until EndStep.
  virtual const SlotMap& slots(std::int32_t layer) const = 0;
  // decisions[i] says how misses[i] is served: kFetch or kHost, never kHit.
  virtual void DecideMisses(std::int32_t layer, absl::Span<const ExpertDemand> misses,
                            absl::Span<ServingDecision> decisions) = 0;
  virtual void ObserveRouting(const RoutingObservation& observation) = 0;
  virtual void EndStep() = 0;
};

}  // namespace comoe::api
