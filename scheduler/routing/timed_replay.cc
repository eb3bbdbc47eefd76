#include "scheduler/routing/timed_replay.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::routing {
namespace {

// Logits of experts that a recorded list does not name, below the least that it names.
constexpr float kUnnamedGap = 2.0F;

}  // namespace

std::vector<std::vector<ReplayRow>> LockstepRows(const Trace& trace, absl::Span<const std::int32_t> sequences,
                                                 std::int32_t batch, std::int64_t max_steps) {
  std::vector<std::vector<ReplayRow>> steps;
  const auto size = static_cast<std::size_t>(batch);
  for (std::size_t first = 0; first + size <= sequences.size(); first += size) {
    const absl::Span<const std::int32_t> group = sequences.subspan(first, size);
    std::int32_t length = std::numeric_limits<std::int32_t>::max();
    for (const std::int32_t sequence : group) {
      length = std::min(length, trace.sequences[static_cast<std::size_t>(sequence)].num_tokens());
    }
    for (std::int32_t t = 0; t < length; ++t) {
      if (static_cast<std::int64_t>(steps.size()) == max_steps) {
        return steps;
      }
      std::vector<ReplayRow>& rows = steps.emplace_back();
      for (const std::int32_t sequence : group) {
        rows.push_back({static_cast<std::size_t>(sequence), t});
      }
    }
  }
  return steps;
}

TraceStep MakeTraceStep(const Trace& trace, absl::Span<const ReplayRow> rows, std::uint64_t step) {
  TraceStep made;
  made.plan.step.value = step;
  for (const ReplayRow& row : rows) {
    api::PlanSpan& span = made.plan.spans.emplace_back();
    span.sequence.value = row.sequence;
    span.start_position = std::int64_t{row.token} + 1;
    span.tokens.push_back(trace.sequences[row.sequence].tokens[static_cast<std::size_t>(row.token)]);
  }
  made.experts.reserve(rows.size() * trace.header.moe_layers.size() *
                       static_cast<std::size_t>(trace.header.experts_per_token));
  for (std::int32_t layer = 0; layer < trace.header.num_moe_layers(); ++layer) {
    for (const ReplayRow& row : rows) {
      const absl::Span<const std::uint16_t> experts = trace.Experts(row.sequence, row.token, layer);
      made.experts.insert(made.experts.end(), experts.begin(), experts.end());
    }
  }
  return made;
}

LookaheadSource RecordedLookahead(const Trace& trace) {
  return [&trace](absl::Span<const ReplayRow> rows, std::int32_t target, std::int32_t distance,
                  absl::Span<float> logits) {
    if (distance > trace.header.lookahead) {
      return false;
    }
    const auto num_experts = static_cast<std::size_t>(trace.header.num_experts);
    for (std::size_t t = 0; t < rows.size(); ++t) {
      const absl::Span<const std::uint16_t> named =
          trace.Ahead(rows[t].sequence, rows[t].token, target, distance);
      if (named.empty() || named.front() == kNoExpert) {
        return false;
      }
      absl::Span<const float> scores;
      if (trace.header.has_scores) {
        scores = trace.Scores(rows[t].sequence, rows[t].token, target, distance);
      }
      const auto score = [&](std::size_t i) { return scores.empty() ? -static_cast<float>(i) : scores[i]; };
      const absl::Span<float> row = logits.subspan(t * num_experts, num_experts);
      std::fill(row.begin(), row.end(), score(named.size() - 1) - kUnnamedGap);
      for (std::size_t i = 0; i < named.size(); ++i) {
        if (named[i] != kNoExpert) {
          row[named[i]] = score(i);
        }
      }
    }
    return true;
  };
}

TimedReplayer::TimedReplayer(const Trace& trace, const TierShape& shape, const ReplayRates& rates,
                             LookaheadSource lookahead, api::ExpertDirector* director)
    : trace_(trace),
      shape_(shape),
      rates_(rates),
      lookahead_(std::move(lookahead)),
      director_(*director),
      slots_(static_cast<std::size_t>(shape.device_slots)),
      rows_needing_(static_cast<std::size_t>(shape.num_experts)) {
  for (const api::FetchOrder& order : director_.InitialOrders()) {
    if (order.tier == base::Tier::kDevice) {
      initial_.Update(Occupy(order.slot, order.key));
    }
  }
}

absl::Status TimedReplayer::Step(absl::Span<const ReplayRow> rows) {
  COMOE_RETURN_IF_ERROR(initial_);
  const TraceStep step = MakeTraceStep(trace_, rows, next_step_++);
  ++totals_.steps;
  totals_.rows += static_cast<std::int64_t>(rows.size());
  weights_.assign(rows.size() * static_cast<std::size_t>(shape_.experts_per_token),
                  1.0F / static_cast<float>(shape_.experts_per_token));
  const double began = now_;
  const double stalled = totals_.stall_seconds;
  const auto num_layers = static_cast<std::int64_t>(shape_.moe_layers.size());
  director_.BeginStep(step.plan);
  AdvanceLink();
  COMOE_RETURN_IF_ERROR(TakeOrders(-1, (totals_.steps - 1) * num_layers - 1));
  for (std::size_t i = 0; i < shape_.moe_layers.size(); ++i) {
    COMOE_RETURN_IF_ERROR(RunLayer(rows, step, i));
  }
  director_.EndStep();
  totals_.seconds += now_ - began;
  director_.ObserveStepTime({now_ - began, totals_.stall_seconds - stalled, 0.0});
  return absl::OkStatus();
}

absl::Status TimedReplayer::RunLayer(absl::Span<const ReplayRow> rows, const TraceStep& step,
                                     std::size_t index) {
  const std::int32_t layer = shape_.moe_layers[index];
  const std::size_t layer_size = rows.size() * static_cast<std::size_t>(shape_.experts_per_token);
  const absl::Span<const std::int32_t> experts =
      absl::MakeConstSpan(step.experts).subspan(index * layer_size, layer_size);
  const std::int64_t turn = (totals_.steps - 1) * static_cast<std::int64_t>(shape_.moe_layers.size()) +
                            static_cast<std::int64_t>(index);
  now_ += rates_.dense_seconds;
  AdvanceLink();
  std::fill(rows_needing_.begin(), rows_needing_.end(), 0);
  for (const std::int32_t expert : experts) {
    ++rows_needing_[static_cast<std::size_t>(expert)];
  }
  api::RoutingObservation observation;
  observation.step = step.plan.step;
  observation.layer = layer;
  observation.experts_per_token = shape_.experts_per_token;
  observation.experts = experts;
  observation.weights = weights_;
  director_.ObserveRouting(observation);
  ShowLookahead(rows, index);

  host_free_ = now_;
  ready_.clear();
  COMOE_RETURN_IF_ERROR(Look(layer));
  if (!misses_.empty()) {
    COMOE_RETURN_IF_ERROR(Decide(layer));
  }
  COMOE_RETURN_IF_ERROR(TakeOrders(layer, turn));

  std::sort(ready_.begin(), ready_.end());
  double end = now_;
  for (const double ready : ready_) {
    totals_.stall_seconds += std::max(ready - end, 0.0);
    end = std::max(end, ready) + rates_.device_seconds;
  }
  totals_.stall_seconds += std::max(host_free_ - end, 0.0);
  now_ = std::max(end, host_free_);
  AdvanceLink();
  DropLateGuesses(turn);
  return absl::OkStatus();
}

void TimedReplayer::ShowLookahead(absl::Span<const ReplayRow> rows, std::size_t index) {
  const auto num_ahead = static_cast<std::size_t>(std::max(director_.lookahead(), 0));
  if (num_ahead == 0 || !lookahead_) {
    return;
  }
  logits_.resize(rows.size() * static_cast<std::size_t>(shape_.num_experts));
  for (std::size_t d = 1; d <= num_ahead && index + d < shape_.moe_layers.size(); ++d) {
    if (!lookahead_(rows, static_cast<std::int32_t>(index + d), static_cast<std::int32_t>(d),
                    absl::MakeSpan(logits_))) {
      continue;
    }
    api::LookaheadObservation observation;
    observation.step.value = next_step_ - 1;
    observation.layer = shape_.moe_layers[index];
    observation.target = shape_.moe_layers[index + d];
    observation.num_experts = shape_.num_experts;
    observation.logits = logits_;
    director_.ObserveLookahead(observation);
  }
}

absl::Status TimedReplayer::Look(std::int32_t layer) {
  misses_.clear();
  const api::SlotMap& map = director_.slots(layer);
  if (map.slot.size() != static_cast<std::size_t>(shape_.num_experts)) {
    return absl::InternalError("director: a slot map of the wrong size");
  }
  for (std::int32_t expert = 0; expert < shape_.num_experts; ++expert) {
    const auto e = static_cast<std::size_t>(expert);
    if (rows_needing_[e] == 0) {
      continue;
    }
    ++totals_.lookups;
    if (map.slot[e] < 0) {
      misses_.push_back({{layer, expert}, rows_needing_[e]});
      continue;
    }
    const auto s = static_cast<std::size_t>(map.slot[e]);
    if (s >= slots_.size() || slots_[s].key != base::ExpertKey{layer, expert}) {
      return absl::InternalError(absl::StrCat("director: slot ", s, " does not hold expert ", expert,
                                              " of layer ", layer, ", as the slot map says"));
    }
    Slot& slot = slots_[s];
    ++totals_.hits;
    if (slot.queued) {
      Dequeue(map.slot[e]);
      ++totals_.guesses_copied;
      slot.ready = CopyNow();
    }
    totals_.late_hits += slot.ready > now_ ? 1 : 0;
    totals_.guesses_used += slot.unused_guess ? 1 : 0;
    slot.unused_guess = false;
    ready_.push_back(std::max(slot.ready, now_));
  }
  return absl::OkStatus();
}

absl::Status TimedReplayer::Decide(std::int32_t layer) {
  decisions_.assign(misses_.size(), api::MissDecision{});
  director_.DecideMisses(layer, misses_, Lanes(), absl::MakeSpan(decisions_));
  for (std::size_t i = 0; i < misses_.size(); ++i) {
    if (decisions_[i].serving == api::ServingDecision::kHost) {
      ++totals_.host;
      host_free_ += rates_.host_seconds + rates_.host_seconds_per_row * (misses_[i].rows - 1);
      continue;
    }
    ++totals_.fetched;
    const double ready = CopyNow();
    ready_.push_back(ready);
    if (decisions_[i].slot != api::kStagingSlot) {
      COMOE_RETURN_IF_ERROR(Occupy(decisions_[i].slot, misses_[i].key));
      slots_[static_cast<std::size_t>(decisions_[i].slot)].ready = ready;
    }
  }
  return absl::OkStatus();
}

absl::Status TimedReplayer::TakeOrders(std::int32_t layer, std::int64_t turn) {
  const absl::Span<const api::FetchOrder> orders = director_.Orders(layer, Lanes());
  orders_.assign(orders.begin(), orders.end());
  const auto num_layers = static_cast<std::int64_t>(shape_.moe_layers.size());
  for (const api::FetchOrder& order : orders_) {
    if (order.tier != base::Tier::kDevice) {
      continue;  // everything is in page-locked memory
    }
    const auto found = std::find(shape_.moe_layers.begin(), shape_.moe_layers.end(), order.key.layer);
    if (found == shape_.moe_layers.end()) {
      return absl::InternalError(absl::StrCat("director: layer ", order.key.layer, " has no experts"));
    }
    COMOE_RETURN_IF_ERROR(Occupy(order.slot, order.key));
    Slot& slot = slots_[static_cast<std::size_t>(order.slot)];
    slot.queued = true;
    slot.unused_guess = true;
    const std::int64_t begin_of_step = (totals_.steps - 1) * num_layers;
    std::int64_t deadline = begin_of_step + (found - shape_.moe_layers.begin());
    deadline += deadline <= turn ? num_layers : 0;
    guesses_.push_back({order.slot, order.key, now_, deadline});
    ++totals_.guesses;
  }
  return absl::OkStatus();
}

void TimedReplayer::AdvanceLink() {
  while (!guesses_.empty()) {
    const double start = std::max(link_free_, guesses_.front().issued);
    if (start >= now_) {
      return;
    }
    Slot& slot = slots_[static_cast<std::size_t>(guesses_.front().slot)];
    guesses_.pop_front();
    link_free_ = start + rates_.copy_seconds;
    totals_.link_seconds += rates_.copy_seconds;
    slot.queued = false;
    slot.ready = link_free_;
    ++totals_.guesses_copied;
  }
}

void TimedReplayer::DropLateGuesses(std::int64_t turn) {
  for (std::size_t i = 0; i < guesses_.size();) {
    if (guesses_[i].deadline > turn) {
      ++i;
      continue;
    }
    const Guess late = guesses_[i];
    guesses_.erase(guesses_.begin() + static_cast<std::ptrdiff_t>(i));
    slots_[static_cast<std::size_t>(late.slot)] = Slot{};
    ++totals_.guesses_dropped;
    director_.OnVacated(base::Tier::kDevice, late.slot, late.key, true);
  }
}

double TimedReplayer::CopyNow() {
  link_free_ = std::max(link_free_, now_) + rates_.copy_seconds;
  totals_.link_seconds += rates_.copy_seconds;
  return link_free_;
}

absl::Status TimedReplayer::Occupy(std::int32_t slot, base::ExpertKey key) {
  if (slot < 0 || slot >= shape_.device_slots || key.layer < 0 || key.layer >= shape_.num_layers ||
      key.expert < 0 || key.expert >= shape_.num_experts) {
    return absl::InternalError(
        absl::StrCat("director: no slot ", slot, " or no expert ", key.expert, " of layer ", key.layer));
  }
  Slot& target = slots_[static_cast<std::size_t>(slot)];
  if (target.queued) {
    Dequeue(slot);
    ++totals_.guesses_dropped;
  } else {
    totals_.guesses_wasted += target.unused_guess ? 1 : 0;
  }
  target = Slot{key, 0.0, false, false};
  return absl::OkStatus();
}

void TimedReplayer::Dequeue(std::int32_t slot) {
  const auto found = std::find_if(guesses_.begin(), guesses_.end(),
                                  [slot](const Guess& guess) { return guess.slot == slot; });
  if (found != guesses_.end()) {
    guesses_.erase(found);
  }
  slots_[static_cast<std::size_t>(slot)].queued = false;
}

api::LaneState TimedReplayer::Lanes() const {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = rates_.copy_seconds;
  lanes.link_queue_seconds = std::max(link_free_ - now_, 0.0);
  lanes.device_seconds_per_expert = rates_.device_seconds;
  lanes.host_seconds_per_expert = rates_.host_seconds;
  lanes.host_seconds_per_row = rates_.host_seconds_per_row;
  lanes.queued_guesses = static_cast<std::int32_t>(guesses_.size());
  return lanes;
}

TimedTotals TimedReplayer::totals() const {
  TimedTotals totals = totals_;
  for (const Slot& slot : slots_) {
    totals.guesses_wasted += slot.unused_guess && !slot.queued ? 1 : 0;
  }
  return totals;
}

absl::StatusOr<TimedTotals> RunTimed(const Trace& trace, const TierShape& shape, const ReplayRates& rates,
                                     const LookaheadSource& lookahead,
                                     const std::vector<std::vector<ReplayRow>>& steps,
                                     api::ExpertDirector* director) {
  TimedReplayer replayer(trace, shape, rates, lookahead, director);
  for (const std::vector<ReplayRow>& rows : steps) {
    COMOE_RETURN_IF_ERROR(replayer.Step(rows));
  }
  return replayer.totals();
}

}  // namespace comoe::routing
