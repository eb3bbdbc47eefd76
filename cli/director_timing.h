// How much time of the engine thread a director takes, step by step.
#pragma once

#include <memory>
#include <vector>

#include "engine/api/expert_director.h"

namespace comoe::cli {

// Real seconds in the director's calls, of each step that has ended.
struct DirectorTimes {
  std::vector<double> step_seconds;

  double Quantile(double q) const;  // 0 where there is no step
};

// Decides as `inner` does and adds to `times`, which outlives it. `delay_seconds` > 0 makes every step that
// much slower: a fault for tests.
std::unique_ptr<api::ExpertDirector> MakeTimedDirector(std::unique_ptr<api::ExpertDirector> inner,
                                                       DirectorTimes* times, double delay_seconds);

}  // namespace comoe::cli
