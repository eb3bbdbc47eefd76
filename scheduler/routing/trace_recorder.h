// Watches the routing of every layer and row on its way to a director: for `comoe verify` and traces.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/base/ids.h"
#include "scheduler/routing/trace_file.h"

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

// Gathers whole steps for a trace file. `header` says of which model, and how far to look ahead: the engine
// is asked for header.lookahead layers, or as many as `inner` wants if that is more. `sink` is called when a
// step ends, if every MoE layer was observed. Sequences are named by their ids in the plan.
using StepCallback = std::function<void(const TraceStepRecord& step)>;
std::unique_ptr<api::ExpertDirector> MakeStepRecorder(std::unique_ptr<api::ExpertDirector> inner,
                                                      const TraceHeader& header, StepCallback sink);

}  // namespace comoe::routing
