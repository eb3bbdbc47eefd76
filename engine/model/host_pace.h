// How fast the host computes experts as a step goes on, beside what was measured at start, when nothing else
// used the host's memory and one expert's bytes lay in the processor's cache.
#pragma once

#include "engine/api/expert_director.h"

namespace comoe::model {

// A fading mean of measured over expected seconds, of work alone and of work beside copies. How much of a
// layer's work runs beside copies differs from layer to layer: one measurement tells little.
// Thread-compatible.
class HostPace {
 public:
  // Work that should have taken `expected` seconds (> 0) by the rates of the start. What is no time, as on a
  // broken device, is passed over.
  void Measured(double seconds, double expected, bool beside_copies);
  // A decision that no measurement comes to: a host that was slow once is tried again some day.
  void NotMeasured();
  // From the rates of the start to those of late.
  void Describe(api::LaneState& lanes) const;

 private:
  double alone_ = 1.0;
  double beside_ = 1.0;
};

}  // namespace comoe::model
