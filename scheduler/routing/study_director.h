// A director for studies of prefetch: the simple policy's cache, with guesses from outside, all of which are
// believed. What it asks for displaces whatever the window values least.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/api/expert_director.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::routing {

// The experts guessed for MoE layer number `index` of step number `step` (from 0), most urgent first.
using GuessSource =
    std::function<void(std::int64_t step, std::size_t index, std::vector<std::int32_t>* experts)>;

// `guesses` empty: no prefetch. Guesses for a layer are asked for when the layer before it runs.
std::unique_ptr<api::ExpertDirector> MakeStudyDirector(const TierShape& shape, const PolicyOptions& options,
                                                       GuessSource guesses);

// What a layer needs, each expert with probability `accuracy`, or else a wrong one in its place; the same for
// the same seed. Trace and steps outlive it.
GuessSource ForcedGuesses(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps,
                          double accuracy, std::uint64_t seed);
// The `width` likeliest of what a predictor forecasts for all rows together. It is shown the trace as it
// goes, what the next layer needs excepted; asked once for each layer of each step, in order. `lookahead` may
// be empty. Trace, steps and predictor outlive it.
GuessSource PredictedGuesses(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps,
                             LookaheadSource lookahead, std::int32_t width, RowPredictor* predictor);
// Forced guesses as the forecasts of a policy that has a predictor of its own: each is forecast with the
// probability `accuracy`, all else with 0. Asked step after step. Trace and steps outlive it.
std::unique_ptr<RowPredictor> MakeForcedPredictor(const Trace& trace,
                                                  const std::vector<std::vector<ReplayRow>>& steps,
                                                  double accuracy, std::uint64_t seed);
// Forced guesses as look-ahead scores, for policies that read those: of each row's experts each stands out
// with that probability, or else a wrong one in its place.
LookaheadSource ForcedLookahead(const Trace& trace, double accuracy, std::uint64_t seed);

}  // namespace comoe::routing
