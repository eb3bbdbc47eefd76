// Watches the routing of every layer and row on its way to a director: for `comoe verify` and traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/base/ids.h"

namespace comoe::routing {

// Which token a row of a step was.
struct TraceRow {
  base::SequenceId sequence;
  std::int64_t position = 0;
  base::TokenId token = 0;
};

// Called for every observation, on the engine thread, before the inner director sees it. rows[t] belongs to
// row t of the observation. Both live only as long as the call: copy what shall be kept.
using RoutingCallback =
    std::function<void(const api::RoutingObservation& observation, absl::Span<const TraceRow> rows)>;

// A director that decides as `inner` does and tells `callback` what it saw. Owned by the engine thread.
std::unique_ptr<api::ExpertDirector> MakeTraceRecorder(std::unique_ptr<api::ExpertDirector> inner,
                                                       RoutingCallback callback);

}  // namespace comoe::routing
