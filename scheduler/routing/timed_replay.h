// Runs a director over a recorded trace on a virtual clock: what a policy's copies, guesses and host work
// would cost on a given link, without an engine.
//
// The model. Layers run in order. A layer begins with `dense_seconds` of other work; then its routing is
// known. Experts run on the device one after another, in the order in which they are there; the host lane
// works through its own meanwhile; the layer ends with the last of both. The link moves one expert at a time.
// Certain copies go first, in the order decided; guesses go, in the order given, while no certain copy waits,
// one at a time, and one that is on the link is not interrupted. A guess whose layer has passed before its
// turn is dropped, and the director is told. An expert that is needed while its guess waits is copied as if
// it were certain. All other host work takes no time. What the model leaves out: launches, staging (an expert
// that is not kept needs no room), several copies sharing the link, and that an expert whose slot was given
// away still lies there until it is overwritten.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "scheduler/routing/replay.h"
#include "scheduler/routing/tier_shape.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::routing {

struct ReplayRates {
  double copy_seconds = 4.0;    // one expert over the link
  double device_seconds = 1.0;  // one expert on the device
  double dense_seconds = 0.1;   // everything else of a layer
  double host_seconds = 0.0;    // one expert on the host; 0: no host lane
  double host_seconds_per_row = 0.0;
};

// One row of a step: a token of a sequence of the trace, by index.
struct ReplayRow {
  std::size_t sequence = 0;
  std::int32_t token = 0;
};

// Decode steps: `batch` of the sequences side by side, a token each, group after group, as long as the
// shortest of a group lasts; sequences that do not fill a last group are left out. At most max_steps.
std::vector<std::vector<ReplayRow>> LockstepRows(const Trace& trace, absl::Span<const std::int32_t> sequences,
                                                 std::int32_t batch, std::int64_t max_steps);
// The same as plan and routing. Positions count from 1, so that every row counts as a decode.
TraceStep MakeTraceStep(const Trace& trace, absl::Span<const ReplayRow> rows, std::uint64_t step);

// Fills logits [T, num_experts] of the MoE layer number `target` as seen `distance` layers before. False:
// nothing is known there.
using LookaheadSource = std::function<bool(absl::Span<const ReplayRow> rows, std::int32_t target,
                                           std::int32_t distance, absl::Span<float> logits)>;
// What the trace recorded. An expert that is not among the recorded gets the least recorded score less 2;
// where only the order is known, scores fall by 1 a place.
LookaheadSource RecordedLookahead(const Trace& trace);

// In experts and seconds.
struct TimedTotals {
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t lookups = 0;    // an expert that a layer of a step needs
  std::int64_t hits = 0;       // in a slot, or on its way there
  std::int64_t late_hits = 0;  // of them, waited for
  std::int64_t fetched = 0;
  std::int64_t host = 0;
  std::int64_t guesses = 0;  // ordered
  std::int64_t guesses_copied = 0;
  std::int64_t guesses_used = 0;
  std::int64_t guesses_wasted = 0;   // copied, displaced or left without a use
  std::int64_t guesses_dropped = 0;  // before they were on the link
  double seconds = 0.0;
  double stall_seconds = 0.0;  // the device waited within a layer
  double link_seconds = 0.0;   // it was busy

  double hit_rate() const {
    return lookups > 0 ? static_cast<double>(hits) / static_cast<double>(lookups) : 0.0;
  }
  std::int64_t copied() const { return fetched + guesses_copied; }
  double tokens_per_second() const { return seconds > 0.0 ? static_cast<double>(rows) / seconds : 0.0; }
};

// Not thread-safe.
class TimedReplayer {
 public:
  // Trace and director outlive it. `lookahead` is asked for as many layers as the director wants.
  TimedReplayer(const Trace& trace, const TierShape& shape, const ReplayRates& rates,
                LookaheadSource lookahead, api::ExpertDirector* director);

  // INTERNAL if the director names slots or experts that are not there.
  absl::Status Step(absl::Span<const ReplayRow> rows);
  // Guesses that are on the device unused count as wasted.
  TimedTotals totals() const;

 private:
  struct Slot {
    base::ExpertKey key{-1, -1};
    double ready = 0.0;
    bool queued = false;  // its guess is not on the link yet
    bool unused_guess = false;
  };
  struct Guess {
    std::int32_t slot = 0;
    base::ExpertKey key;
    double issued = 0.0;
    std::int64_t deadline = 0;  // turns of layers
  };

  absl::Status RunLayer(absl::Span<const ReplayRow> rows, const TraceStep& step, std::size_t index);
  void ShowLookahead(absl::Span<const ReplayRow> rows, std::size_t index);
  absl::Status Look(std::int32_t layer);
  absl::Status Decide(std::int32_t layer);
  absl::Status TakeOrders(std::int32_t layer, std::int64_t turn);
  // Starts guesses whose turn on the link comes before now_.
  void AdvanceLink();
  void DropLateGuesses(std::int64_t turn);
  // A certain copy: when it has arrived.
  double CopyNow();
  absl::Status Occupy(std::int32_t slot, base::ExpertKey key);
  void Dequeue(std::int32_t slot);
  api::LaneState Lanes() const;

  const Trace& trace_;
  const TierShape shape_;
  const ReplayRates rates_;
  const LookaheadSource lookahead_;
  api::ExpertDirector& director_;
  absl::Status initial_;
  std::vector<Slot> slots_;
  std::deque<Guess> guesses_;
  double now_ = 0.0;
  double link_free_ = 0.0;
  double host_free_ = 0.0;
  std::uint64_t next_step_ = 1;
  std::vector<std::int32_t> rows_needing_;  // [num_experts]
  std::vector<api::ExpertDemand> misses_;
  std::vector<api::MissDecision> decisions_;
  std::vector<api::FetchOrder> orders_;
  std::vector<double> ready_;  // when each expert of the layer is on the device
  std::vector<float> weights_;
  std::vector<float> logits_;
  TimedTotals totals_;
};

// All steps; stops at the first error.
absl::StatusOr<TimedTotals> RunTimed(const Trace& trace, const TierShape& shape, const ReplayRates& rates,
                                     const LookaheadSource& lookahead,
                                     const std::vector<std::vector<ReplayRow>>& steps,
                                     api::ExpertDirector* director);

}  // namespace comoe::routing
