// What limits a step, from a few sums: arithmetic apart from the probe, so that it can be tested.
#pragma once

#include <string>

#include "cli/doctor_report.h"

namespace comoe::cli {

// Seconds of a step.
struct BindingInput {
  double step = 0.0;
  double compute = 0.0;    // the device worked: no step is shorter
  double link_busy = 0.0;  // something was copied to the device: with these bytes, no step is shorter
  double hit_rate = 0.0;
  double roomy_step = 0.0;  // the same with twice the slots; 0: not tried
};

struct BindingVerdict {
  Binding binding = Binding::kUnknown;
  std::string reason;
  double link_gain = 0.0;      // how many times faster with twice the link's rate
  double capacity_gain = 0.0;  // with twice the slots
};

// Scheduling: neither lane is busy. Compute: the device is. Otherwise the link is full, and what binds is
// capacity where twice the slots would give more than twice the link.
BindingVerdict JudgeBinding(const BindingInput& in);

}  // namespace comoe::cli
