#include "scheduler/routing/hub_director.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/status_macros.h"
#include "scheduler/routing/hub_state.h"
#include "scheduler/routing/hub_worker.h"
#include "scheduler/routing/mix_predictor.h"
#include "scheduler/routing/moving_forecaster.h"

namespace comoe::routing {
namespace {

// An expert whose layer has just run waits a whole cycle for its next chance, one of the next layer hardly at
// all: a step's distance takes this much off the logarithm of an expert's worth. On the study's traces .05 to
// .3 all gain .001 to .003 of hits.
constexpr double kCycle = 0.1;
// A use counts as a miss of it would have cost, but for this share of a copy at least: where copies hide
// behind computation, bunches of misses are what the device waits for, and yet fewer of them is better than
// more. On the study's trace .01 to .5 are never below `lru`, 1 (all uses alike) is by .03 % at one point
// of 36.
constexpr double kLeastStake = 0.3;
// Of a count of nothing.
constexpr double kLeastCount = 1e-6;
// How fast the measured time of a layer follows.
constexpr double kLayerFade = 0.9;
// Whose use of experts the composer may ask about.
constexpr std::size_t kMostSequences = 256;
// What a row of a waiting prompt is worth in page-locked memory, in past uses.
constexpr double kHintWorth = 4.0;
// How fast the share of layers that have to copy follows.
constexpr double kMissFade = 0.99;

std::unique_ptr<DemandForecaster> MakeForecaster(const TierShape& shape, const PolicyOptions& options,
                                                 std::unique_ptr<RowPredictor> predictor) {
  const HubParameters& parameters = options.hub;
  if (predictor == nullptr) {
    MixOptions mix;
    mix.token_table_bytes = static_cast<std::uint64_t>(parameters.token_table_bytes);
    mix.decay = parameters.decay;
    mix.interval = static_cast<std::int32_t>(parameters.prediction_interval);
    predictor = std::make_unique<MixPredictor>(shape, mix);
  }
  const auto look_ahead = static_cast<std::int32_t>(parameters.look_ahead);
  if (parameters.predictor_thread == 1.0) {
    return MakeHubWorker(shape, std::move(predictor), look_ahead);
  }
  return parameters.predictor_thread == 2.0 && options.clock
             ? MakeMovingForecaster(shape, std::move(predictor), look_ahead, options.clock)
             : MakeInlineForecaster(shape, std::move(predictor));
}

}  // namespace

HubDirector::HubDirector(const TierShape& shape, const PolicyOptions& options,
                         std::unique_ptr<RowPredictor> predictor)
    : PooledDirector(shape, options),
      parameters_(options.hub),
      expert_bytes_(options.expert_bytes),
      admission_(parameters_.admission > 0.0 ? std::log(parameters_.admission) : -1e9),
      index_(static_cast<std::size_t>(shape.num_layers), -1),
      counts_(shape, parameters_.decay),
      turns_(static_cast<std::size_t>(shape.num_layers), 0),
      forecaster_(MakeForecaster(shape, options, std::move(predictor))),
      planner_(options.host_lane, shape.num_experts, parameters_.hysteresis),
      plan_judge_(parameters_.hysteresis),
      prefetch_judge_(parameters_.hysteresis),
      score_judge_(parameters_.hysteresis),
      lookahead_(static_cast<std::int32_t>(parameters_.look_ahead), parameters_.look_ahead_limit,
                 parameters_.hysteresis),
      guests_(shape.device_slots, static_cast<std::int32_t>(parameters_.guess_slots)),
      promoter_(&residency(), options.promotion_margin),
      costs_(shape, parameters_.window, kMostSequences),
      hints_(shape.num_keys(), 0.0F) {
  for (std::size_t i = 0; i < shape.moe_layers.size(); ++i) {
    index_[static_cast<std::size_t>(shape.moe_layers[i])] = static_cast<std::int32_t>(i);
  }
  const auto num_experts = static_cast<std::size_t>(shape.num_experts);
  const auto k = static_cast<std::size_t>(shape.experts_per_token);
  selected_.reserve(kMaxForecastRows);
  tokens_.reserve(kMaxForecastRows);
  scores_.resize(kMaxForecastRows * num_experts);
  experts_.resize(kMaxForecastRows * k);
  wanted_.resize(num_experts);
  next_step_.probability.resize(num_experts);
  next_step_.expected_rows.resize(num_experts);
  likely_.reserve(num_experts);
  rising_.reserve(num_experts);
  saved_.reserve(num_experts);
  host_served_.reserve(num_experts);
  settled_.reserve(static_cast<std::size_t>(shape.device_slots));
  orders_.reserve(static_cast<std::size_t>(2 * shape.num_experts + 1024));
  promoter_.RefreshAll([this](base::ExpertKey key) { return PinnedValue(key); });
}

// --- what experts are worth ---

double HubDirector::Value(base::ExpertKey key) const {
  const auto l = static_cast<std::size_t>(key.layer);
  const double turn = static_cast<double>(turns_[l]) +
                      static_cast<double>(index_[l]) / static_cast<double>(shape().moe_layers.size());
  return std::log(counts_.Stake(key) + kLeastCount) - kCycle * turn;
}

double HubDirector::PinnedValue(base::ExpertKey key) const {
  return counts_.StepUses(key) + kHintWorth * static_cast<double>(hints_[shape().Index(key)]);
}

double HubDirector::ReusePerStep(base::ExpertKey key) const {
  return std::min(1.0, counts_.StepUses(key) * (1.0 - parameters_.decay));
}

// By how much longer, in copies, that layer takes with one more miss. It need not be at hand any more.
double HubDirector::Stake(const api::RoutingObservation& observation) {
  if (lanes_.link_seconds_per_expert <= 0.0) {
    return 1.0;
  }
  std::fill(wanted_.begin(), wanted_.end(), 0.0F);
  double experts = 0.0;
  double misses = 0.0;
  for (const std::int32_t expert : observation.experts) {
    if (std::exchange(wanted_[static_cast<std::size_t>(expert)], 1.0F) == 0.0F) {
      experts += 1.0;
      misses += residency().device().SlotOf({observation.layer, expert}) == kNoSlot ? 1.0 : 0.0;
    }
  }
  const double longer = SavedByOneLess(misses + 1.0, experts, lanes_);
  return std::max(kLeastStake, longer / lanes_.link_seconds_per_expert);
}

void HubDirector::Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  counts_.Observe(layer, experts, stake_);
  ++turns_[static_cast<std::size_t>(layer)];
}

// --- the step ---

void HubDirector::BeginStep(const api::StepPlan& plan) {
  PooledDirector::BeginStep(plan);
  promoter_.Advance();
  ++report_.steps;
  SelectRows(plan);
  forecaster_->BeginStep(tokens_);
}

// All rows if they are few; otherwise decodes first, then rows of prefill, evenly spread.
void HubDirector::SelectRows(const api::StepPlan& plan) {
  owners_.clear();
  selected_.clear();
  tokens_.clear();
  for (const api::PlanSpan& span : plan.spans) {
    owners_.insert(owners_.end(), span.tokens.size(), span.sequence);
  }
  num_step_rows_ = static_cast<std::int64_t>(owners_.size());
  const std::size_t room = kMaxForecastRows;
  all_selected_ = owners_.size() <= room;
  for (const bool decodes : {true, false}) {
    std::size_t num_left = owners_.size() - selected_.size();
    std::size_t row = 0;
    for (const api::PlanSpan& span : plan.spans) {
      for (const base::TokenId token : span.tokens) {
        const bool candidate = all_selected_ ? decodes : rows().is_decode(row) == decodes;
        if (candidate && selected_.size() < room) {
          const bool taken = all_selected_ || decodes || (num_left % ((num_left + room - 1) / room)) == 0;
          if (taken) {
            selected_.push_back({row, token});
          }
          num_left -= num_left > 1 ? 1 : 0;
        }
        ++row;
      }
    }
  }
  for (const Row& row : selected_) {
    tokens_.push_back(row.token);
  }
}

absl::Span<const std::int32_t> HubDirector::SelectExperts(const api::RoutingObservation& observation) {
  if (all_selected_) {
    return observation.experts;
  }
  const auto k = static_cast<std::size_t>(observation.experts_per_token);
  for (std::size_t t = 0; t < selected_.size(); ++t) {
    std::copy_n(observation.experts.begin() + static_cast<std::ptrdiff_t>(selected_[t].index * k), k,
                experts_.begin() + static_cast<std::ptrdiff_t>(t * k));
  }
  return absl::MakeConstSpan(experts_).first(selected_.size() * k);
}

void HubDirector::ObserveRouting(const api::RoutingObservation& observation) {
  promoter_.Advance();
  host_served_.clear();
  const std::int32_t layer = observation.layer;
  stake_ = Stake(observation);
  PooledDirector::ObserveRouting(observation);
  promoter_.RefreshLayer(layer, shape().num_experts,
                         [this](base::ExpertKey key) { return PinnedValue(key); });
  SettleGuesses(observation);
  miss_share_ *= kMissFade;
  const auto k = static_cast<std::size_t>(observation.experts_per_token);
  if (observation.experts.size() != owners_.size() * k) {
    return;  // not of this step
  }
  forecaster_->Observe(layer, SelectExperts(observation));
  if (costs_.profiles().samples(layer)) {
    for (std::size_t row = 0; row < owners_.size(); ++row) {
      if (rows().is_decode(row)) {
        costs_.profiles().Observe(owners_[row], layer, observation.experts.subspan(row * k, k));
      }
    }
  }
}

void HubDirector::SettleGuesses(const api::RoutingObservation& observation) {
  settled_.clear();
  guests_.Settle(observation.layer, &settled_);
  for (const GuestSlots::Guess& guess : settled_) {
    // The layer need not be at hand any more.
    const bool right = std::find(observation.experts.begin(), observation.experts.end(), guess.key.expert) !=
                       observation.experts.end();
    prefetch_judge_.Outcome(static_cast<std::size_t>(guess.distance), right, right ? guess.saves : 0.0,
                            guess.costs);
    // One that is used as much as what is kept anyhow is kept, too.
    if (right) {
      const std::int32_t lowest = SlotFor(Value(guess.key));
      if (lowest != kNoSlot && !guests_.guest(lowest)) {
        guests_.Forget(guess.slot);
      }
    }
  }
}

std::int32_t HubDirector::lookahead() const {
  const bool probe = score_judge_.on() && report_.steps % kStepsPerProbe == 0;
  return wants_scores_ || probe ? lookahead_.width() : 0;
}

void HubDirector::ObserveLookahead(const api::LookaheadObservation& observation) {
  const auto num_experts = static_cast<std::size_t>(shape().num_experts);
  if (observation.num_experts != shape().num_experts ||
      observation.logits.size() != owners_.size() * num_experts) {
    return;
  }
  if (all_selected_) {
    forecaster_->ObserveLookahead(observation.layer, observation.target, observation.logits);
    return;
  }
  for (std::size_t t = 0; t < selected_.size(); ++t) {
    std::copy_n(observation.logits.begin() + static_cast<std::ptrdiff_t>(selected_[t].index * num_experts),
                num_experts, scores_.begin() + static_cast<std::ptrdiff_t>(t * num_experts));
  }
  forecaster_->ObserveLookahead(observation.layer, observation.target,
                                absl::MakeConstSpan(scores_).first(selected_.size() * num_experts));
}

// --- misses ---

double HubDirector::MissSeconds(const api::LaneState& lanes) const {
  const double copy = CopySeconds(1, lanes) - lanes.link_queue_seconds;
  return planner_.host_lane(lanes) ? std::min(copy, HostSeconds(1, lanes)) : copy;
}

void HubDirector::PlanMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> misses,
                             absl::Span<const double> values, const api::LaneState& lanes,
                             absl::Span<api::MissDecision> decisions) {
  saved_.clear();
  if (planner_.host_lane(lanes) && parameters_.reuse_weight > 0.0) {
    // Of what a copy saves later, what its victim would have saved is lost.
    for (std::size_t i = 0; i < misses.size(); ++i) {
      double gain = 0.0;
      if (needed().ByDecode(misses[i].key)) {
        const std::int32_t slot = SlotFor(MostWorthDisplaced(values[i]));
        const bool free = slot != kNoSlot && !residency().device().KeyIn(slot).has_value();
        gain = slot == kNoSlot ? 0.0 : free ? 1.0 : 1.0 - std::exp(WorthOfSlot(slot) - values[i]);
      }
      saved_.push_back(parameters_.reuse_weight * gain * MissSeconds(lanes));
    }
  }
  plan_judge_.Planned(planner_.Assign(misses, saved_, plan_judge_.kind(), lanes, decisions));
}

void HubDirector::DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                               const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) {
  PooledDirector::DecideMisses(layer, misses, lanes, decisions);
  const bool copies = std::any_of(decisions.begin(), decisions.end(), [](const api::MissDecision& decision) {
    return decision.serving == api::ServingDecision::kFetch;
  });
  if (copies) {
    miss_share_ += 1.0 - kMissFade;
    // The layer before waited for all that was certain, so what is on the link now is a guess; a right one of
    // this layer is one of the copies that it has to wait for anyhow.
    if (latest_arm_ >= 0 && !needed().Contains(latest_guess_)) {
      prefetch_judge_.HeldUp(static_cast<std::size_t>(latest_arm_),
                             std::min(lanes.link_queue_seconds, lanes.link_seconds_per_expert));
    }
  }
  for (std::size_t i = 0; i < misses.size(); ++i) {
    if (decisions[i].serving == api::ServingDecision::kHost && needed().ByDecode(misses[i].key)) {
      host_served_.push_back(misses[i].key);
    }
  }
}

void HubDirector::Placed(base::ExpertKey key, const Residency::Moved& moved) {
  guests_.Forget(residency().device().SlotOf(key));
  promoter_.Placed(key, moved, [this](base::ExpertKey other) { return PinnedValue(other); });
}

void HubDirector::OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  const bool in_table = tier == base::Tier::kDevice && slot >= 0 && slot < residency().device().num_slots();
  if (in_table && (!usable || residency().device().SlotOf(key) == slot)) {
    guests_.Forget(slot);
  }
  PooledDirector::OnVacated(tier, slot, key, usable);
  promoter_.Vacated(tier, slot, key, [this](base::ExpertKey other) { return PinnedValue(other); });
}

// --- measurements, state ---

void HubDirector::ObserveStepTime(const api::StepTimes& times) {
  if (!(times.step > 0.0) || !(times.stall >= 0.0) || !std::isfinite(times.step)) {
    return;
  }
  plan_judge_.Measured(times.stall);
  costs_.ObserveStep(num_step_rows_, times.step);
  lookahead_.Observe(times.step, times.look_ahead);
  const double net = prefetch_judge_.net_seconds();
  score_judge_.Observe(times.look_ahead, net - std::exchange(net_seconds_, net), times.stall);
  const double layer =
      std::max(0.0, times.step - times.stall) / static_cast<double>(shape().moe_layers.size());
  layer_seconds_ = layer_seconds_ > 0.0 ? layer_seconds_ * kLayerFade + layer * (1.0 - kLayerFade) : layer;
}

HubReport HubDirector::report() const {
  HubReport report = report_;
  for (std::size_t arm = 0; arm < report.distances.size(); ++arm) {
    HubReport::Distance& distance = report.distances[arm];
    distance.on = prefetch_judge_.on(arm);
    distance.precision = prefetch_judge_.precision(arm);
    distance.right = prefetch_judge_.num_right(arm);
    distance.wrong = prefetch_judge_.num_wrong(arm);
  }
  const auto reach = static_cast<std::size_t>(std::max(1, lookahead_.width()));
  for (std::size_t arm = 0; arm <= reach; ++arm) {
    report.prefetching = report.prefetching || (parameters_.prefetch_depth > 0.0 && prefetch_judge_.on(arm));
  }
  report.fallen_back = plan_judge_.fallen_back();
  report.copies_all = plan_judge_.fallen_back() && plan_judge_.kind() == SplitKind::kCopyOnly;
  report.fallbacks = plan_judge_.num_fallbacks();
  report.look_ahead = lookahead_.width();
  report.most_look_ahead = static_cast<std::int32_t>(parameters_.look_ahead);
  report.predictor_on_thread = forecaster_->on_own_thread();
  report.late_forecasts = forecaster_->num_late();
  report.dropped_observations = forecaster_->num_dropped();
  return report;
}

std::vector<std::uint8_t> HubDirector::SaveState(std::uint64_t checkpoint) {
  HubState state;
  state.counts.resize(shape().num_keys());
  for (const std::int32_t layer : shape().moe_layers) {
    for (std::int32_t expert = 0; expert < shape().num_experts; ++expert) {
      const base::ExpertKey key{layer, expert};
      state.counts[shape().Index(key)] = static_cast<float>(counts_.StepUses(key));
      if (residency().device().SlotOf(key) != kNoSlot) {
        state.on_device.push_back(key);
      }
    }
  }
  std::stable_sort(state.on_device.begin(), state.on_device.end(), [&](base::ExpertKey a, base::ExpertKey b) {
    return state.counts[shape().Index(a)] > state.counts[shape().Index(b)];
  });
  forecaster_->Append(&state.predictor);
  return EncodeHubState(shape(), checkpoint, state);
}

absl::Status HubDirector::LoadState(std::uint64_t checkpoint, absl::Span<const std::uint8_t> bytes) {
  COMOE_ASSIGN_OR_RETURN(const HubState state, DecodeHubState(shape(), checkpoint, bytes));
  std::vector<std::uint8_t> own;
  forecaster_->Append(&own);
  if (own.size() == state.predictor.size()) {
    absl::Span<const std::uint8_t> predictor = state.predictor;
    forecaster_->Restore(&predictor);
  }
  counts_.Restore(state.counts);
  for (const base::ExpertKey key : state.on_device) {
    if (residency().device().FreeSlot() == kNoSlot) {
      break;
    }
    if (residency().device().SlotOf(key) == kNoSlot) {
      Place(key, residency().device().FreeSlot());
    }
  }
  promoter_.RefreshAll([this](base::ExpertKey key) { return PinnedValue(key); });
  report_.warm = true;
  return absl::OkStatus();
}

}  // namespace comoe::routing
