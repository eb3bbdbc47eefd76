// How the engine learns where experts are and what to do about those that are not there: the only path from
// the engine to the routing hub and to the simpler policies. Numbers only.
//
// The director decides which expert lies in which slot of the device and pinned tiers; the engine carries
// that out (copies, leases, fences) and says what failed.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "engine/base/stage.h"

namespace comoe::api {

// How a needed expert is served.
enum class ServingDecision : std::uint8_t {
  kHit,    // it is in a device slot, or on its way there
  kFetch,  // copy it, then compute on the device
  kHost    // the CPU computes it where it lies
};

// What a layer needs of one expert in this step.
struct ExpertDemand {
  base::ExpertKey key;
  std::int32_t rows = 0;  // at least 1
};

// The expert passes through a staging slot and is not kept.
inline constexpr std::int32_t kStagingSlot = -1;

struct MissDecision {
  ServingDecision serving = ServingDecision::kFetch;  // or kHost, never kHit
  // kFetch: the device slot that holds the expert from now on, whatever was in it, or kStagingSlot.
  std::int32_t slot = kStagingSlot;
};

// An expert to be put into a slot ahead of need. Exclusive tiers swap: what was in the slot goes to where the
// expert came from.
struct FetchOrder {
  base::ExpertKey key;
  base::Tier tier = base::Tier::kDevice;                  // or kPinned
  std::int32_t slot = 0;                                  // of that tier
  base::CopyReason reason = base::CopyReason::kPrefetch;  // or kWarmup
};

// Device slots of one MoE layer, published before a step. Hits are resolved from it without asking.
struct SlotMap {
  std::vector<std::int32_t> slot;  // [num_experts]; -1: not on the device nor on its way
};

// One layer's routing, as it happened. May be handed over after the layer has run.
struct RoutingObservation {
  base::StepId step;
  std::int32_t layer = 0;
  std::int32_t experts_per_token = 0;      // k
  absl::Span<const std::int32_t> experts;  // [T, k], best first
  absl::Span<const float> weights;         // [T, k]
};

// Routers of later layers, applied early: to the input of `layer`'s router, with the later layer's own norm.
// Hints, good for as long as the call.
struct LookaheadObservation {
  base::StepId step;
  std::int32_t layer = 0;   // whose input it was
  std::int32_t target = 0;  // the MoE layer whose router it was: after `layer` in the same step
  std::int32_t num_experts = 0;
  absl::Span<const float> logits;  // [T, num_experts]
};

// What is known of the lanes at the moment of a decision; rates are measured, or given until they are.
struct LaneState {
  double link_seconds_per_expert = 0;    // one blob to the device, alone
  double link_queue_seconds = 0;         // until copies that are under way or certain have ended
  double device_seconds_per_expert = 0;  // computing one on the device, few rows
  double host_seconds_per_expert = 0;    // computing one on the host, few rows; 0: there is no host lane
  double host_seconds_per_row = 0;       // of it, for each row beyond the first
  double host_slowdown = 1;         // by what host work takes longer while copies use the host's memory too
  std::int32_t queued_guesses = 0;  // prefetch orders not yet on the link
};

// What the step that ended last took, in seconds on the device's clock.
struct StepTimes {
  double step = 0.0;
  double stall = 0.0;       // of it, the device waited for experts: for copies and for the host lane
  double look_ahead = 0.0;  // of it, routers were applied early; 0 where that is not measured
};

// Called by the engine thread. BeginStep, Orders(-1); then per MoE layer: ObserveRouting, slots, DecideMisses
// if any expert is not in them, ObserveLookahead for as many layers ahead as lookahead() says (after the
// layer's certain copies were started), Orders(layer); then EndStep, ObserveStepTime. OnVacated at any time
// between.
//
// A layer whose experts are all on the device runs without asking, on devices that can. Its routing is told
// later, in the order of layers: before that of the next layer that asks, or before EndStep; there is no
// look-ahead from it or to it. Orders(layer) comes as soon as it is queued, before its routing is known, and
// only if the MoE layer after it (after the last, the first of the next step) is not all there; likewise
// Orders(-1).
class ExpertDirector {
 public:
  virtual ~ExpertDirector() = default;
  virtual absl::string_view policy() const = 0;

  // What lies where at start. Called once, before the first step.
  virtual std::vector<FetchOrder> InitialOrders() { return {}; }
  virtual void BeginStep(const StepPlan& plan) = 0;
  // Valid until the next call that is not const.
  virtual const SlotMap& slots(std::int32_t layer) const = 0;
  // decisions[i] says how misses[i] is served; their copies are issued in this order. Slots named must not
  // hold an expert that this layer needs.
  virtual void DecideMisses(std::int32_t layer, absl::Span<const ExpertDemand> misses, const LaneState& lanes,
                            absl::Span<MissDecision> decisions) = 0;
  // What else to move now, most urgent first; -1: before the first layer. Slots named must not hold an expert
  // that `layer` needs. Valid until the next call.
  virtual absl::Span<const FetchOrder> Orders(std::int32_t /*layer*/, const LaneState& /*lanes*/) {
    return {};
  }
  virtual void ObserveRouting(const RoutingObservation& observation) = 0;
  // For how many MoE layers ahead of each the engine shall compute scores in this step; 0: none.
  virtual std::int32_t lookahead() const { return 0; }
  virtual void ObserveLookahead(const LookaheadObservation& /*observation*/) {}
  // The expert did not get to its slot (its copy failed, or its order was dropped): the slot is empty.
  // `usable` false: and is never to be used again.
  virtual void OnVacated(base::Tier /*tier*/, std::int32_t /*slot*/, base::ExpertKey /*key*/,
                         bool /*usable*/) {}
  virtual void EndStep() = 0;

  // Between steps. A request waits whose first chunk will begin with these tokens.
  virtual void HintPrompt(absl::Span<const base::TokenId> /*tokens*/) {}
  virtual void ObserveStepTime(const StepTimes& /*times*/) {}
};

}  // namespace comoe::api
