// The hub's orders ahead of need: guesses and whether they are worth their bytes, what the host computed and
// is worth keeping, hinted prompts, what rises to page-locked memory.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/predictor.h"

namespace comoe::routing {
namespace {

// A hinted expert is worth an order if the prompt's first rows are expected to need it at all.
constexpr float kLeastHint = 0.5F;
// Where fewer layers than that have to copy anything there is nothing to be early for.
constexpr double kLeastMissShare = 0.02;
// Copies that may wait for the link when another one is to be made behind its layer.
constexpr std::int32_t kMostBehind = 8;

}  // namespace

double HubDirector::LinkStart(const api::LaneState& lanes) const {
  return lanes.link_queue_seconds +
         static_cast<double>(lanes.queued_guesses + orders_in_layer_) * lanes.link_seconds_per_expert;
}

// A layer's copies go on while the device computes what is there, so that the last of few may cost nothing.
double HubDirector::SavedByOneLess(double misses, double experts, const api::LaneState& lanes) const {
  const double hidden = (experts - 1.0) * lanes.device_seconds_per_expert;
  const double copies = misses * lanes.link_seconds_per_expert;
  return std::clamp(copies - hidden, 0.0, MissSeconds(lanes));
}

// Not measured: as long as a copy takes.
double HubDirector::LayerSeconds(const api::LaneState& lanes) const {
  return layer_seconds_ > 0.0 ? layer_seconds_ : lanes.link_seconds_per_expert;
}

std::int32_t HubDirector::RoomForGuesses(const api::LaneState& lanes) const {
  const double depth = parameters_.prefetch_depth;
  double in_flight = 2.0 * depth;
  if (expert_bytes_ > 0) {
    in_flight = std::min(in_flight, parameters_.bytes_in_flight / static_cast<double>(expert_bytes_));
  }
  return static_cast<std::int32_t>(std::min(depth, in_flight - lanes.queued_guesses));
}

absl::Span<const api::FetchOrder> HubDirector::Orders(std::int32_t layer, const api::LaneState& lanes) {
  orders_.clear();
  orders_in_layer_ = 0;
  lanes_ = lanes;
  latest_arm_ = layer < 0 ? latest_arm_ : -1;
  EnterLayer(layer);
  // Without a link there is nothing to be early for.
  if (lanes.link_seconds_per_expert > 0.0) {
    guesses_left_ = RoomForGuesses(lanes);
    KeepHostServed(lanes);
    Prefetch(layer, lanes);
    if (layer >= 0) {
      UseHint(layer, lanes);
    }
  }
  if (layer >= 0) {
    Promote(layer);
  }
  return orders_;
}

// What the host computed is copied behind its layer if it is worth keeping and the link has the time.
void HubDirector::KeepHostServed(const api::LaneState& lanes) {
  if (shape().exclusive) {
    host_served_.clear();  // the copy would give its place away, from which the host still computes
  }
  for (const base::ExpertKey key : host_served_) {
    // In the way only of a layer that has to copy something itself.
    const double late =
        miss_share_ * std::max(0.0, LinkStart(lanes) + lanes.link_seconds_per_expert - LayerSeconds(lanes));
    if (lanes.queued_guesses + orders_in_layer_ >= kMostBehind) {
      break;
    }
    const std::int32_t slot = SlotFor(MostWorthDisplaced(Value(key)));
    if (slot == kNoSlot || residency().device().SlotOf(key) != kNoSlot) {
      continue;
    }
    const std::optional<base::ExpertKey> victim = residency().device().KeyIn(slot);
    // The past says how often it will be used before it is displaced; what is never used was copied for
    // nothing.
    const double uses = counts_.StepUses(key);
    const double more = uses - (victim.has_value() ? counts_.StepUses(*victim) : 0.0);
    const double bytes = parameters_.byte_price * lanes.link_seconds_per_expert * std::exp(-uses);
    if (more * MissSeconds(lanes) <= late + bytes) {
      continue;
    }
    orders_.push_back({key, base::Tier::kDevice, slot, base::CopyReason::kPrefetch});
    Place(key, slot);
    ++orders_in_layer_;
    ++report_.kept_behind;
  }
  host_served_.clear();
}

const Demand& HubDirector::NextStepDemand(std::int32_t target) {
  for (std::int32_t expert = 0; expert < shape().num_experts; ++expert) {
    next_step_.probability[static_cast<std::size_t>(expert)] =
        static_cast<float>(ReusePerStep({target, expert}));
  }
  return next_step_;
}

void HubDirector::Prefetch(std::int32_t layer, const api::LaneState& lanes) {
  const std::int32_t at = layer < 0 ? -1 : index_[static_cast<std::size_t>(layer)];
  const auto num_layers = static_cast<std::int32_t>(shape().moe_layers.size());
  const std::int32_t reach = std::max(1, lookahead_.width());
  wants_scores_ = false;
  for (std::size_t arm = 1; arm <= static_cast<std::size_t>(reach); ++arm) {
    wants_scores_ = wants_scores_ || prefetch_judge_.on(arm);
  }
  wants_scores_ = wants_scores_ && parameters_.prefetch_depth > 0.0 && score_judge_.on() &&
                  miss_share_ >= kLeastMissShare;
  for (std::int32_t ahead = 1; ahead <= reach && guesses_left_ > 0; ++ahead) {
    // A forecast from tokens or counts alone is judged apart.
    const bool wraps = at + ahead >= num_layers;
    const std::size_t arm = wraps || layer < 0 ? 0 : static_cast<std::size_t>(ahead);
    if (wraps && ahead > 1) {
      break;
    }
    const std::int32_t target = shape().moe_layers[static_cast<std::size_t>(wraps ? 0 : at + ahead)];
    if (arm > 1 && !prefetch_judge_.on(arm) && report_.steps % kStepsPerProbe != 0) {
      continue;  // not worth a forecast
    }
    PrefetchLayer(target, arm, ahead * LayerSeconds(lanes), lanes);
  }
}

void HubDirector::PrefetchLayer(std::int32_t target, std::size_t arm, double deadline,
                                const api::LaneState& lanes) {
  const bool wraps = target <= needed().layer();
  const Demand& demand = wraps ? NextStepDemand(target) : forecaster_->Forecast(target);
  double distinct = 0.0;
  double missing = 0.0;
  for (std::size_t e = 0; e < wanted_.size(); ++e) {
    const base::ExpertKey key{target, static_cast<std::int32_t>(e)};
    const float p = demand.probability[e];
    const bool absent = residency().device().SlotOf(key) == kNoSlot;
    distinct += static_cast<double>(p);
    missing += absent ? static_cast<double>(p) : 0.0;
    const bool candidate =
        static_cast<double>(p) >= parameters_.cut_off && p > 0.0F && absent && !needed().Contains(key);
    wanted_[e] = candidate ? p : 0.0F;
  }
  const auto most = static_cast<std::int32_t>(std::ceil(parameters_.top_k_multiple * distinct));
  MostLikely(wanted_, std::min(most, guesses_left_), &likely_);
  if (likely_.empty()) {
    return;
  }
  const std::int32_t allowed = prefetch_judge_.Allowed(arm, static_cast<std::int32_t>(likely_.size()));
  for (std::int32_t n = 0; n < allowed; ++n) {
    const std::int32_t expert = likely_[static_cast<std::size_t>(n)];
    const double p = static_cast<double>(wanted_[static_cast<std::size_t>(expert)]);
    const double worth = SavedByOneLess(missing + 1.0 - p, distinct + 1.0 - p, lanes);
    if (!Guess({target, expert}, p, arm, {LinkStart(lanes), LayerSeconds(lanes), deadline, worth}, lanes)) {
      break;
    }
    missing -= p;
    --guesses_left_;
  }
}

bool HubDirector::Guess(base::ExpertKey key, double probability, std::size_t arm, const Chance& chance,
                        const api::LaneState& lanes) {
  // Right: what has been copied when its layer comes need not be waited for. But whatever it is, what is not
  // copied when the next layer comes is in the way of that layer's misses, unless it is one of them.
  const double copy = lanes.link_seconds_per_expert;
  const double done = std::min(copy, std::max(0.0, chance.deadline - chance.start));
  GuestSlots::Guess guess{key, kNoSlot, static_cast<std::int32_t>(arm), std::min(done, chance.worth), 0.0};
  const double into_layer = std::fmod(chance.start, chance.next_layer);
  const double overlap = std::min(copy, std::max(0.0, into_layer + copy - chance.next_layer));
  const bool is_next = chance.deadline <= chance.next_layer;
  const double in_the_way = overlap * miss_share_ * (is_next ? 1.0 - probability : 1.0);
  if (probability * guess.saves <= in_the_way) {
    return false;
  }
  guess.slot = SlotForGuess();
  if (guess.slot == kNoSlot) {
    return false;
  }
  const std::optional<base::ExpertKey> victim = residency().device().KeyIn(guess.slot);
  const double lost = victim.has_value() ? ReusePerStep(*victim) : 0.0;
  guess.costs = lost * MissSeconds(lanes);
  // Bytes that nobody would have moved otherwise: the guess if it is wrong, its victim if that comes back.
  const double bytes = parameters_.byte_price * copy * (1.0 - probability + lost);
  if (probability * guess.saves <= in_the_way + guess.costs + bytes) {
    return false;
  }
  latest_arm_ = guess.distance;
  latest_guess_ = key;
  orders_.push_back({key, base::Tier::kDevice, guess.slot, base::CopyReason::kPrefetch});
  Place(key, guess.slot);
  guests_.Add(guess);
  ++orders_in_layer_;
  ++report_.distances[arm].guesses;
  return true;
}

std::int32_t HubDirector::SlotForGuess() {
  if (residency().device().FreeSlot() != kNoSlot) {
    return residency().device().FreeSlot();
  }
  if (!guests_.full()) {
    return SlotFor(std::numeric_limits<double>::infinity());
  }
  std::int32_t lowest = kNoSlot;
  for (const std::int32_t slot : guests_.idle()) {
    const bool may = !needed().Contains(*residency().device().KeyIn(slot));
    if (may && (lowest == kNoSlot || WorthOfSlot(slot) < WorthOfSlot(lowest))) {
      lowest = slot;
    }
  }
  return lowest;
}

void HubDirector::HintPrompt(absl::Span<const base::TokenId> tokens) {
  if (!tokens.empty()) {
    std::fill(hints_.begin(), hints_.end(), 0.0F);
    forecaster_->Hint(tokens);
  }
}

// The prompt's first chunk comes with the next step at the earliest: what it needs of the layer that has just
// run has a whole cycle to arrive.
void HubDirector::UseHint(std::int32_t layer, const api::LaneState& lanes) {
  const Demand* demand = forecaster_->TakeHint(layer);
  if (demand == nullptr) {
    return;
  }
  for (std::size_t e = 0; e < wanted_.size(); ++e) {
    const base::ExpertKey key{layer, static_cast<std::int32_t>(e)};
    const float rows = demand->expected_rows[e] >= kLeastHint ? demand->expected_rows[e] : 0.0F;
    hints_[shape().Index(key)] = rows;
    wanted_[e] = residency().device().SlotOf(key) == kNoSlot && !needed().Contains(key) ? rows : 0.0F;
  }
  MostLikely(wanted_, shape().num_experts, &likely_);
  const bool idle = lanes.link_queue_seconds <= 0.0 && lanes.queued_guesses == 0 && orders_in_layer_ == 0;
  if (idle && !likely_.empty() && guesses_left_ > 0) {
    const base::ExpertKey key{layer, likely_.front()};
    const double cycle = LayerSeconds(lanes) * static_cast<double>(shape().moe_layers.size());
    const double p = std::min(1.0, static_cast<double>(wanted_[static_cast<std::size_t>(key.expert)]));
    if (prefetch_judge_.Allowed(0, 1) > 0 &&
        Guess(key, p, 0, {LinkStart(lanes), LayerSeconds(lanes), cycle, MissSeconds(lanes)}, lanes)) {
      ++report_.hinted;
    }
  }
}

void HubDirector::Promote(std::int32_t layer) {
  const auto most = static_cast<std::int32_t>(parameters_.promotions);
  if (residency().pinned().num_slots() == 0 || most == 0) {
    return;
  }
  for (std::int32_t expert = 0; expert < shape().num_experts; ++expert) {
    const base::ExpertKey key{layer, expert};
    const bool below =
        residency().device().SlotOf(key) == kNoSlot && residency().pinned().SlotOf(key) == kNoSlot;
    wanted_[static_cast<std::size_t>(expert)] = below ? static_cast<float>(PinnedValue(key)) : 0.0F;
  }
  MostLikely(wanted_, std::min(most, shape().num_experts), &likely_);
  rising_.clear();
  for (const std::int32_t expert : likely_) {
    rising_.push_back({layer, expert});
  }
  promoter_.Promote(
      rising_, most, needed(), [this](base::ExpertKey key) { return PinnedValue(key); }, &orders_);
}

}  // namespace comoe::routing
