#include "scheduler/routing/oracle.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <queue>
#include <utility>

#include "scheduler/routing/miss_planner.h"
#include "scheduler/routing/needed_set.h"

namespace comoe::routing {
namespace {

// Farther ahead than that the link does not come, and copies under way would take slots for nothing.
constexpr std::int32_t kMaxGuessesQueued = 8;
constexpr std::int64_t kCyclesAhead = 2;

double Share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Slots of a layer when they are shared out evenly.
std::int32_t SlotsOf(std::int32_t layer, std::int32_t device_slots, std::int32_t num_layers) {
  return device_slots / num_layers + (layer < device_slots % num_layers ? 1 : 0);
}

// Belady over the turns of one layer, or of all (layer -1); says of each access whether it hit, if asked.
// Every access puts an entry on the heap; one that is out of date, its expert used again or displaced since,
// is skipped.
std::int64_t OptimalHits(const AccessLog& log, const std::vector<std::int64_t>& next_uses, std::int32_t layer,
                         std::int32_t num_slots, std::vector<bool>* is_hit) {
  const std::int64_t stride = layer < 0 ? 1 : log.num_layers();
  const auto num_experts = static_cast<std::size_t>(log.num_experts());
  constexpr std::int64_t kAbsent = -1;
  std::vector<std::int64_t> next_use(static_cast<std::size_t>(log.num_layers()) * num_experts, kAbsent);
  std::priority_queue<std::pair<std::int64_t, std::size_t>> farthest;
  std::int32_t held = 0;
  std::int64_t hits = 0;
  for (std::int64_t turn = std::max(layer, 0); turn < log.num_turns(); turn += stride) {
    const std::size_t base = static_cast<std::size_t>(turn % log.num_layers()) * num_experts;
    std::size_t access = log.first_access(turn);
    // Those that hit first: what a miss displaces is then none of this turn.
    for (const std::uint16_t expert : log.Turn(turn)) {
      const std::int64_t next = next_uses[access++];
      const std::size_t key = base + expert;
      const bool hit = next_use[key] != kAbsent;
      hits += hit ? 1 : 0;
      held += hit ? 0 : 1;
      if (is_hit != nullptr) {
        (*is_hit)[access - 1] = hit;
      }
      next_use[key] = next;
      farthest.emplace(next, key);
    }
    while (held > num_slots) {
      const auto [next, key] = farthest.top();
      farthest.pop();
      if (next_use[key] == next) {
        next_use[key] = kAbsent;
        --held;
      }
    }
  }
  return hits;
}

class OracleDirector final : public api::ExpertDirector {
 public:
  OracleDirector(const TierShape& shape, std::shared_ptr<const AccessLog> log, OracleKind kind,
                 bool host_lane);

  absl::string_view policy() const override { return "oracle"; }
  void BeginStep(const api::StepPlan& /*plan*/) override { needed_.Begin(-1); }
  const api::SlotMap& slots(std::int32_t layer) const override {
    return maps_[static_cast<std::size_t>(layer)];
  }
  void ObserveRouting(const api::RoutingObservation& observation) override;
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override;
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override;
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override;
  void EndStep() override {}

 private:
  struct Use {
    std::int64_t turn = 0;
    bool from_cache = false;  // Belady keeps the expert until then
  };

  // The first after the turn at hand that needs the expert.
  Use NextUse(base::ExpertKey key);
  // A slot that is free, or whose expert may give way and is needed after `turn`, the latest of these; -1:
  // none.
  std::int32_t SlotFor(std::int64_t turn);
  // Whether a slot is to spare from now on until `turn`; it is then spoken for.
  bool Reserve(std::int64_t turn);
  void Place(base::ExpertKey key, std::int32_t slot);
  std::int32_t& SlotOf(base::ExpertKey key) {
    return maps_[static_cast<std::size_t>(key.layer)].slot[static_cast<std::size_t>(key.expert)];
  }

  const TierShape shape_;
  const std::shared_ptr<const AccessLog> log_;
  const OracleKind kind_;
  MissPlanner planner_;
  NeededSet needed_;
  std::vector<api::SlotMap> maps_;      // [num_layers]
  std::vector<base::ExpertKey> held_;   // [device_slots]; layer -1: free
  std::vector<bool> usable_;            // [device_slots]
  std::vector<std::vector<Use>> uses_;  // by key
  std::vector<std::size_t> cursor_;     // by key: the first of its uses after turn_
  // Slots that are spoken for after each turn: by what Belady keeps, and by what is copied ahead.
  std::vector<std::int32_t> taken_;
  std::int64_t turn_ = -1;
  std::vector<api::FetchOrder> orders_;
};

OracleDirector::OracleDirector(const TierShape& shape, std::shared_ptr<const AccessLog> log, OracleKind kind,
                               bool host_lane)
    : shape_(shape),
      log_(std::move(log)),
      kind_(kind),
      planner_(host_lane, shape.num_experts),
      needed_(shape.num_experts),
      maps_(static_cast<std::size_t>(shape.num_layers)),
      held_(static_cast<std::size_t>(shape.device_slots), base::ExpertKey{-1, -1}),
      usable_(static_cast<std::size_t>(shape.device_slots), true),
      uses_(shape.num_keys()),
      cursor_(shape.num_keys(), 0),
      taken_(static_cast<std::size_t>(log_->num_turns()), 0) {
  for (api::SlotMap& map : maps_) {
    map.slot.assign(static_cast<std::size_t>(shape.num_experts), -1);
  }
  std::vector<bool> is_hit(static_cast<std::size_t>(log_->num_accesses()), false);
  OptimalHits(*log_, log_->NextUses(), -1, shape_.device_slots, &is_hit);
  std::vector<std::int32_t> changes(taken_.size(), 0);
  std::size_t access = 0;
  for (std::int64_t turn = 0; turn < log_->num_turns(); ++turn) {
    const std::int32_t layer = shape_.moe_layers[static_cast<std::size_t>(turn % log_->num_layers())];
    for (const std::uint16_t expert : log_->Turn(turn)) {
      std::vector<Use>& uses = uses_[shape_.Index({layer, expert})];
      if (is_hit[access]) {
        ++changes[static_cast<std::size_t>(uses.back().turn)];
        --changes[static_cast<std::size_t>(turn)];
      }
      uses.push_back({turn, is_hit[access++]});
    }
  }
  std::partial_sum(changes.begin(), changes.end(), taken_.begin());
}

void OracleDirector::ObserveRouting(const api::RoutingObservation& observation) {
  ++turn_;
  needed_.Begin(observation.layer);
  for (const std::int32_t expert : observation.experts) {
    needed_.Mark(expert, true);
  }
}

OracleDirector::Use OracleDirector::NextUse(base::ExpertKey key) {
  const std::size_t index = shape_.Index(key);
  std::size_t& at = cursor_[index];
  while (at < uses_[index].size() && uses_[index][at].turn <= turn_) {
    ++at;
  }
  return at < uses_[index].size() ? uses_[index][at] : Use{log_->num_turns(), false};
}

std::int32_t OracleDirector::SlotFor(std::int64_t turn) {
  std::int32_t best = -1;
  std::int64_t latest = turn;
  for (std::size_t s = 0; s < held_.size(); ++s) {
    if (!usable_[s]) {
      continue;
    }
    if (held_[s].layer < 0) {
      return static_cast<std::int32_t>(s);
    }
    const Use next = NextUse(held_[s]);
    const bool kept = kind_ == OracleKind::kFrugal && next.from_cache;
    if (!kept && !needed_.Contains(held_[s]) && next.turn > latest) {
      latest = next.turn;
      best = static_cast<std::int32_t>(s);
    }
  }
  return best;
}

bool OracleDirector::Reserve(std::int64_t turn) {
  const auto first = taken_.begin() + static_cast<std::ptrdiff_t>(std::max<std::int64_t>(turn_, 0));
  const auto last = taken_.begin() + static_cast<std::ptrdiff_t>(turn);
  if (std::any_of(first, last, [this](std::int32_t taken) { return taken >= shape_.device_slots; })) {
    return false;
  }
  std::for_each(first, last, [](std::int32_t& taken) { ++taken; });
  return true;
}

void OracleDirector::Place(base::ExpertKey key, std::int32_t slot) {
  base::ExpertKey& held = held_[static_cast<std::size_t>(slot)];
  if (held.layer >= 0) {
    SlotOf(held) = -1;
  }
  held = key;
  SlotOf(key) = slot;
}

void OracleDirector::DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> misses,
                                  const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) {
  planner_.Assign(misses, {}, lanes, decisions);
  for (std::size_t i = 0; i < misses.size(); ++i) {
    decisions[i].slot = api::kStagingSlot;
    if (decisions[i].serving != api::ServingDecision::kFetch) {
      continue;
    }
    const Use next = NextUse(misses[i].key);
    std::int32_t slot = -1;
    if (kind_ == OracleKind::kEager) {
      slot = SlotFor(next.turn);
    } else if (next.from_cache) {
      slot = SlotFor(turn_);  // whatever Belady does not keep makes room for what it does
    }
    if (slot >= 0) {
      Place(misses[i].key, slot);
      decisions[i].slot = slot;
    }
  }
}

absl::Span<const api::FetchOrder> OracleDirector::Orders(std::int32_t /*layer*/,
                                                         const api::LaneState& lanes) {
  orders_.clear();
  const std::int64_t end =
      std::min(log_->num_turns(), turn_ + 1 + kCyclesAhead * std::int64_t{log_->num_layers()});
  for (std::int64_t turn = turn_ + 1; turn < end; ++turn) {
    const std::int32_t layer = shape_.moe_layers[static_cast<std::size_t>(turn % log_->num_layers())];
    for (const std::uint16_t expert : log_->Turn(turn)) {
      const base::ExpertKey key{layer, expert};
      if (SlotOf(key) >= 0) {
        continue;
      }
      if (lanes.queued_guesses + static_cast<std::int32_t>(orders_.size()) >= kMaxGuessesQueued) {
        return orders_;
      }
      if (needed_.Contains(key)) {
        continue;  // it passes through this turn; the next call sees to it
      }
      const std::int32_t slot = kind_ == OracleKind::kEager || Reserve(turn) ? SlotFor(turn) : -1;
      if (slot < 0) {
        return orders_;
      }
      Place(key, slot);
      orders_.push_back({key, base::Tier::kDevice, slot, base::CopyReason::kPrefetch});
    }
  }
  return orders_;
}

void OracleDirector::OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  if (tier != base::Tier::kDevice || slot < 0 || slot >= shape_.device_slots) {
    return;
  }
  const auto s = static_cast<std::size_t>(slot);
  if (held_[s] == key) {
    SlotOf(key) = -1;
    held_[s] = {-1, -1};
  }
  usable_[s] = usable_[s] && usable;
}

}  // namespace

AccessLog::AccessLog(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps)
    : num_layers_(trace.header.num_moe_layers()), num_experts_(trace.header.num_experts) {
  std::vector<std::uint16_t> turn;
  begin_.push_back(0);
  for (const std::vector<ReplayRow>& rows : steps) {
    for (std::int32_t layer = 0; layer < num_layers_; ++layer) {
      turn.clear();
      for (const ReplayRow& row : rows) {
        const absl::Span<const std::uint16_t> experts = trace.Experts(row.sequence, row.token, layer);
        turn.insert(turn.end(), experts.begin(), experts.end());
      }
      std::sort(turn.begin(), turn.end());
      turn.erase(std::unique(turn.begin(), turn.end()), turn.end());
      experts_.insert(experts_.end(), turn.begin(), turn.end());
      begin_.push_back(experts_.size());
    }
  }
}

std::vector<std::int64_t> AccessLog::NextUses() const {
  std::vector<std::int64_t> next(experts_.size());
  std::vector<std::int64_t> seen(
      static_cast<std::size_t>(num_layers_) * static_cast<std::size_t>(num_experts_), num_turns());
  for (std::int64_t turn = num_turns() - 1; turn >= 0; --turn) {
    for (std::size_t i = first_access(turn); i < first_access(turn + 1); ++i) {
      std::int64_t& key =
          seen[static_cast<std::size_t>(turn % num_layers_) * static_cast<std::size_t>(num_experts_) +
               experts_[i]];
      next[i] = key;
      key = turn;
    }
  }
  return next;
}

OfflineRates OptimalHitRates(const AccessLog& log, std::int32_t device_slots) {
  const std::vector<std::int64_t> next_uses = log.NextUses();
  OfflineRates rates;
  rates.optimal_pooled = Share(OptimalHits(log, next_uses, -1, device_slots, nullptr), log.num_accesses());
  std::int64_t hits = 0;
  for (std::int32_t layer = 0; layer < log.num_layers(); ++layer) {
    hits += OptimalHits(log, next_uses, layer, SlotsOf(layer, device_slots, log.num_layers()), nullptr);
  }
  rates.optimal_per_layer = Share(hits, log.num_accesses());
  return rates;
}

double DecayedHitRate(const AccessLog& log, std::int32_t device_slots, double decay, bool per_layer) {
  const auto num_experts = static_cast<std::size_t>(log.num_experts());
  const auto num_layers = static_cast<std::size_t>(log.num_layers());
  struct Key {
    double count = 0.0;  // as of its last use
    std::int64_t step = 0;
    std::int64_t used = -1;  // the turn of its last use
  };
  std::vector<Key> keys(num_layers * num_experts);
  // What is held: one list, or one for each layer.
  std::vector<std::vector<std::size_t>> held(per_layer ? num_layers : 1);
  std::vector<bool> is_held(keys.size(), false);
  std::vector<double> powers(4096);
  double power = 1.0;
  for (double& p : powers) {
    p = power;
    power *= decay;
  }
  std::int64_t hits = 0;
  for (std::int64_t turn = 0; turn < log.num_turns(); ++turn) {
    const auto layer = static_cast<std::size_t>(turn % log.num_layers());
    const std::int64_t step = turn / log.num_layers();
    std::vector<std::size_t>& list = held[per_layer ? layer : 0];
    const auto room = static_cast<std::size_t>(
        per_layer ? SlotsOf(static_cast<std::int32_t>(layer), device_slots, log.num_layers()) : device_slots);
    const auto score = [&](std::size_t key) {
      // A layer whose turn is still to come counts its steps up to the last one.
      const std::int64_t now = key / num_experts <= layer ? step : step - 1;
      const std::int64_t age = std::max<std::int64_t>(now - keys[key].step, 0);
      return age < 4096 ? keys[key].count * powers[static_cast<std::size_t>(age)] : 0.0;
    };
    for (const std::uint16_t expert : log.Turn(turn)) {
      const std::size_t key = layer * num_experts + expert;
      hits += is_held[key] ? 1 : 0;
      const double before = keys[key].used < 0 ? 0.0 : score(key);
      keys[key] = {before + 1.0, step, turn};
      if (!is_held[key]) {
        is_held[key] = true;
        list.push_back(key);
      }
    }
    if (list.size() <= room) {
      continue;
    }
    // Those with the greatest scores stay; among equals what was used last.
    const auto before = [&](std::size_t a, std::size_t b) {
      const double sa = score(a);
      const double sb = score(b);
      return sa > sb ||
             (sa == sb && (keys[a].used > keys[b].used || (keys[a].used == keys[b].used && a < b)));
    };
    std::nth_element(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(room), list.end(), before);
    for (std::size_t i = room; i < list.size(); ++i) {
      is_held[list[i]] = false;
    }
    list.resize(room);
  }
  return Share(hits, log.num_accesses());
}

std::unique_ptr<api::ExpertDirector> MakeOracleDirector(const TierShape& shape,
                                                        std::shared_ptr<const AccessLog> log, OracleKind kind,
                                                        bool host_lane) {
  return std::make_unique<OracleDirector>(shape, std::move(log), kind, host_lane);
}

}  // namespace comoe::routing
