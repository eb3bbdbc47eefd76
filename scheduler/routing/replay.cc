#include "scheduler/routing/replay.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::routing {
namespace {

absl::Status Broken(absl::string_view what, base::ExpertKey key, base::Tier tier, std::int32_t slot) {
  return absl::InternalError(absl::StrCat("director: ", what, " (layer ", key.layer, ", expert ", key.expert,
                                          ", ", base::TierName(tier), " slot ", slot, ")"));
}

}  // namespace

void AppendSpan(const RoutingTrace& trace, std::int32_t sequence, std::int32_t first_token,
                std::int32_t num_tokens, std::int64_t position, TraceStep* step) {
  const auto k = static_cast<std::size_t>(trace.experts_per_token);
  const auto num_layers = static_cast<std::size_t>(trace.num_moe_layers);
  const auto rows_before = static_cast<std::size_t>(step->plan.num_rows());
  const auto rows_added = static_cast<std::size_t>(num_tokens);

  api::PlanSpan span;
  span.sequence.value = static_cast<std::uint64_t>(sequence);
  span.start_position = position;
  span.tokens.assign(rows_added, 0);
  step->plan.spans.push_back(std::move(span));

  std::vector<std::int32_t> experts;
  experts.reserve(num_layers * (rows_before + rows_added) * k);
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    const auto old = step->experts.begin() + static_cast<std::ptrdiff_t>(layer * rows_before * k);
    experts.insert(experts.end(), old, old + static_cast<std::ptrdiff_t>(rows_before * k));
    for (std::size_t t = 0; t < rows_added; ++t) {
      const std::size_t row =
          static_cast<std::size_t>(sequence) * static_cast<std::size_t>(trace.num_tokens) +
          static_cast<std::size_t>(first_token) + t;
      const auto from = trace.experts.begin() + static_cast<std::ptrdiff_t>((row * num_layers + layer) * k);
      experts.insert(experts.end(), from, from + static_cast<std::ptrdiff_t>(k));
    }
  }
  step->experts = std::move(experts);
}

std::vector<TraceStep> LockstepSteps(const RoutingTrace& trace, absl::Span<const std::int32_t> sequences,
                                     std::int32_t batch, std::int64_t max_steps) {
  std::vector<TraceStep> steps;
  const auto group_size = static_cast<std::size_t>(batch);
  for (std::size_t first = 0; first + group_size <= sequences.size(); first += group_size) {
    for (std::int32_t t = 0; t < trace.num_tokens; ++t) {
      if (static_cast<std::int64_t>(steps.size()) == max_steps) {
        return steps;
      }
      TraceStep& step = steps.emplace_back();
      step.plan.step.value = steps.size();
      for (const std::int32_t sequence : sequences.subspan(first, group_size)) {
        AppendSpan(trace, sequence, t, 1, t + 1, &step);
      }
    }
  }
  return steps;
}

Replayer::Replayer(const TierShape& shape, const ReplayOptions& options, api::ExpertDirector* director)
    : shape_(shape),
      options_(options),
      director_(*director),
      device_(static_cast<std::size_t>(shape.device_slots)),
      pinned_(static_cast<std::size_t>(shape.pinned_holds_all ? 0 : shape.pinned_slots)),
      rows_needing_(static_cast<std::size_t>(shape.num_experts), 0) {
  misses_.reserve(rows_needing_.size());
  decisions_.reserve(rows_needing_.size());
  named_.reserve(device_.size() + pinned_.size());
  orders_.reserve(device_.size() + pinned_.size());
  for (const api::FetchOrder& order : director_.InitialOrders()) {
    initial_.Update(Fill(order.key, order.tier, order.slot, false));
    ++totals_.warmup;
  }
}

absl::Status Replayer::Step(const TraceStep& step) {
  COMOE_RETURN_IF_ERROR(initial_);
  const auto num_rows = static_cast<std::size_t>(step.plan.num_rows());
  const std::size_t layer_size = num_rows * static_cast<std::size_t>(shape_.experts_per_token);
  if (step.experts.size() != layer_size * shape_.moe_layers.size() ||
      std::any_of(step.experts.begin(), step.experts.end(),
                  [this](std::int32_t expert) { return expert < 0 || expert >= shape_.num_experts; })) {
    return absl::InvalidArgumentError("trace: a step's routing does not fit the model");
  }
  weights_.assign(layer_size, 1.0F / static_cast<float>(shape_.experts_per_token));
  ++totals_.steps;
  totals_.rows += static_cast<std::int64_t>(num_rows);
  needed_layer_ = -1;
  director_.BeginStep(step.plan);
  COMOE_RETURN_IF_ERROR(RunOrders(-1));
  for (std::size_t i = 0; i < shape_.moe_layers.size(); ++i) {
    COMOE_RETURN_IF_ERROR(RunLayer(shape_.moe_layers[i],
                                   absl::MakeConstSpan(step.experts).subspan(i * layer_size, layer_size)));
  }
  director_.EndStep();
  return absl::OkStatus();
}

absl::Status Replayer::RunLayer(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  needed_layer_ = layer;
  std::fill(rows_needing_.begin(), rows_needing_.end(), 0);
  for (const std::int32_t expert : experts) {
    ++rows_needing_[static_cast<std::size_t>(expert)];
  }
  api::RoutingObservation observation;
  observation.layer = layer;
  observation.experts_per_token = shape_.experts_per_token;
  observation.experts = experts;
  observation.weights = weights_;
  director_.ObserveRouting(observation);
  COMOE_RETURN_IF_ERROR(CheckMap(layer));

  misses_.clear();
  const api::SlotMap& map = director_.slots(layer);
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
    ++totals_.hits;
    Slot& slot = device_[static_cast<std::size_t>(map.slot[e])];
    totals_.prefetched_used += slot.unused_guess ? 1 : 0;
    slot.unused_guess = false;
  }
  if (!misses_.empty()) {
    COMOE_RETURN_IF_ERROR(RunDecisions(layer));
  }
  return RunOrders(layer);
}

absl::Status Replayer::CheckMap(std::int32_t layer) {
  const api::SlotMap& map = director_.slots(layer);
  if (map.slot.size() != static_cast<std::size_t>(shape_.num_experts)) {
    return absl::InternalError("director: a slot map of the wrong size");
  }
  for (std::int32_t expert = 0; expert < shape_.num_experts; ++expert) {
    const std::int32_t slot = map.slot[static_cast<std::size_t>(expert)];
    const base::ExpertKey key{layer, expert};
    if (slot >= 0 && (slot >= shape_.device_slots || device_[static_cast<std::size_t>(slot)].key != key)) {
      return Broken("the slot map names a slot that does not hold the expert", key, base::Tier::kDevice,
                    slot);
    }
  }
  return absl::OkStatus();
}

absl::Status Replayer::RunDecisions(std::int32_t layer) {
  decisions_.assign(misses_.size(), api::MissDecision{api::ServingDecision::kHit});
  director_.DecideMisses(layer, misses_, options_.lanes, absl::MakeSpan(decisions_));
  named_.clear();
  for (std::size_t i = 0; i < misses_.size(); ++i) {
    const api::MissDecision& decision = decisions_[i];
    if (decision.serving == api::ServingDecision::kHost) {
      ++totals_.host;
    } else if (decision.serving != api::ServingDecision::kFetch) {
      return Broken("a miss was left undecided", misses_[i].key, base::Tier::kDevice, decision.slot);
    } else if (decision.slot == api::kStagingSlot) {
      ++totals_.fetched_staged;
    } else {
      ++totals_.fetched_kept;
      COMOE_RETURN_IF_ERROR(Fill(misses_[i].key, base::Tier::kDevice, decision.slot, false));
    }
  }
  return absl::OkStatus();
}

absl::Status Replayer::RunOrders(std::int32_t layer) {
  const absl::Span<const api::FetchOrder> orders = director_.Orders(layer, options_.lanes);
  named_.clear();
  // Copied, since a failure is told at once and the orders are valid until the next call only.
  orders_.assign(orders.begin(), orders.end());
  for (const api::FetchOrder& order : orders_) {
    ++(order.tier == base::Tier::kDevice ? totals_.prefetched : totals_.promoted);
    COMOE_RETURN_IF_ERROR(Fill(order.key, order.tier, order.slot, true));
  }
  return absl::OkStatus();
}

absl::Status Replayer::CheckTarget(base::ExpertKey key, base::Tier tier, std::int32_t slot) const {
  if (tier != base::Tier::kDevice && tier != base::Tier::kPinned) {
    return Broken("an order for a tier without slots", key, tier, slot);
  }
  const std::vector<Slot>& slots = tier == base::Tier::kDevice ? device_ : pinned_;
  if (slot < 0 || slot >= static_cast<std::int32_t>(slots.size())) {
    return Broken("there is no such slot", key, tier, slot);
  }
  const Slot& target = slots[static_cast<std::size_t>(slot)];
  if (target.lost) {
    return Broken("the slot was given up", key, tier, slot);
  }
  if (IsNeeded(target.key)) {
    return Broken("the slot holds an expert that the layer needs", key, tier, slot);
  }
  if (std::find(named_.begin(), named_.end(), std::pair(tier, slot)) != named_.end()) {
    return Broken("a slot is named twice", key, tier, slot);
  }
  const auto holds = [key](const Slot& other) { return other.key == key; };
  if (std::any_of(slots.begin(), slots.end(), holds)) {
    return Broken("the expert is in that tier already", key, tier, slot);
  }
  if (shape_.exclusive && tier == base::Tier::kPinned && std::any_of(device_.begin(), device_.end(), holds)) {
    return Broken("exclusive: the expert is on the device", key, tier, slot);
  }
  return absl::OkStatus();
}

absl::Status Replayer::Fill(base::ExpertKey key, base::Tier tier, std::int32_t slot, bool guess) {
  COMOE_RETURN_IF_ERROR(CheckTarget(key, tier, slot));
  named_.emplace_back(tier, slot);
  Slot& target = SlotsOf(tier)[static_cast<std::size_t>(slot)];
  const base::ExpertKey victim = target.key;
  Displace(&target);
  if (shape_.exclusive && tier == base::Tier::kDevice) {
    for (Slot& source : pinned_) {
      if (source.key == key) {
        source.key = victim;
      }
    }
  }
  const CopyFault fault = options_.fault ? options_.fault(tier, slot, key) : CopyFault::kNone;
  if (fault == CopyFault::kNone) {
    target.key = key;
    target.unused_guess = guess && tier == base::Tier::kDevice;
    return absl::OkStatus();
  }
  ++totals_.failed;
  target.lost = fault == CopyFault::kLosesSlot;
  director_.OnVacated(tier, slot, key, !target.lost);
  return absl::OkStatus();
}

void Replayer::Displace(Slot* slot) {
  totals_.prefetched_wasted += slot->unused_guess ? 1 : 0;
  slot->key = {-1, -1};
  slot->unused_guess = false;
}

bool Replayer::IsNeeded(base::ExpertKey key) const {
  return needed_layer_ >= 0 && key.layer == needed_layer_ &&
         rows_needing_[static_cast<std::size_t>(key.expert)] > 0;
}

absl::StatusOr<ReplayTotals> RunTrace(const TierShape& shape, absl::Span<const TraceStep> steps,
                                      const ReplayOptions& options, api::ExpertDirector* director) {
  Replayer replayer(shape, options, director);
  for (const TraceStep& step : steps) {
    COMOE_RETURN_IF_ERROR(replayer.Step(step));
  }
  return replayer.totals();
}

}  // namespace comoe::routing
