// What the hub has done and what it holds to be worth doing: for metrics, `doctor` and reports.
#pragma once

#include <array>
#include <cstdint>

#include "scheduler/routing/prefetch_judge.h"

namespace comoe::routing {

struct HubReport {
  struct Distance {
    bool on = true;          // prefetch for layers this far ahead pays; 0: the next step's first layer
    double precision = 0.0;  // of late, of guesses
    std::uint64_t guesses = 0, right = 0, wrong = 0;
  };
  std::array<Distance, PrefetchJudge::kNumDistances> distances{};
  bool prefetching = false;          // at least one distance is on and prefetch is not switched off
  std::uint64_t kept_behind = 0;     // misses that the host computed and that were copied after their layer
  std::uint64_t hinted = 0;          // orders that a waiting prompt asked for
  bool fallen_back = false;          // misses are served by a static plan, since the split measured worse
  bool copies_all = false;           // of these: all copied; otherwise all on the host
  std::uint64_t fallbacks = 0;       // times that began
  std::int32_t look_ahead = 0;       // layers that routers are applied ahead, at present
  std::int32_t most_look_ahead = 0;  // and by the setting; guesses reach this far, but 1 at least
  bool predictor_on_thread = false;  // of its own: set so, or since it took too long on the engine's
  std::uint64_t late_forecasts = 0;
  std::uint64_t dropped_observations = 0;
  bool warm = false;  // the state of an earlier run was taken over
  std::uint64_t steps = 0;
};

}  // namespace comoe::routing
