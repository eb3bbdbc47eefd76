// The policy `hub`: the routing hub.
//
// What is kept on the device is decided by decayed counts, which say how likely reuse is and what a miss
// would cost then, and by whose turn comes next in the cycle of layers. Forecasts are for everything else:
// which guesses start early on a link that would idle, as long as measurement says that this pays; which
// misses the host computes, and which of these are worth a copy afterwards; what rises to page-locked memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/demand.h"
#include "scheduler/routing/guest_slots.h"
#include "scheduler/routing/hub_report.h"
#include "scheduler/routing/hub_step_costs.h"
#include "scheduler/routing/lookahead_budget.h"
#include "scheduler/routing/parameters.h"
#include "scheduler/routing/pinned_promoter.h"
#include "scheduler/routing/plan_judge.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/pooled_director.h"
#include "scheduler/routing/prefetch_judge.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/score_judge.h"
#include "scheduler/routing/split_planner.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Owned by the engine thread; allocates nothing once the largest step has been seen.
class HubDirector final : public PooledDirector {
 public:
  // `predictor`: null for the calibrated mix.
  HubDirector(const TierShape& shape, const PolicyOptions& options,
              std::unique_ptr<RowPredictor> predictor = nullptr);

  absl::string_view policy() const override { return "hub"; }
  void BeginStep(const api::StepPlan& plan) override;
  void DecideMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override;
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override;
  void ObserveRouting(const api::RoutingObservation& observation) override;
  std::int32_t lookahead() const override;
  void ObserveLookahead(const api::LookaheadObservation& observation) override;
  void OnVacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) override;
  void HintPrompt(absl::Span<const base::TokenId> tokens) override;
  void ObserveStepTime(const api::StepTimes& times) override;

  HubReport report() const;
  // The composer's numbers; lives as long as the director.
  const HubStepCosts& step_costs() const { return costs_; }

  // What was learnt, bound to a number that names the checkpoint. Between steps.
  std::vector<std::uint8_t> SaveState(std::uint64_t checkpoint);
  // Takes over what an earlier run saved, before InitialOrders. Errors of DecodeHubState; nothing changes
  // then. A predictor of another size is left cold.
  absl::Status LoadState(std::uint64_t checkpoint, absl::Span<const std::uint8_t> bytes);

 protected:
  double Value(base::ExpertKey key) const override;
  void Learn(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void PlanMisses(std::int32_t layer, absl::Span<const api::ExpertDemand> misses,
                  absl::Span<const double> values, const api::LaneState& lanes,
                  absl::Span<api::MissDecision> decisions) override;
  double MostWorthDisplaced(double value) const override { return value - admission_; }
  bool MayDisplace(std::int32_t slot) const override { return !guests_.pending(slot); }
  void Placed(base::ExpertKey key, const Residency::Moved& moved) override;

 private:
  // Once prefetch is off for every distance, scores are asked for in one step of so many.
  static constexpr std::uint64_t kStepsPerProbe = 32;

  struct Row {
    std::size_t index = 0;  // in the step
    base::TokenId token = 0;
  };
  // A copy that could be ordered now. In seconds from now.
  struct Chance {
    double start = 0.0;       // when the link is free for it
    double next_layer = 0.0;  // when misses of the next layer want the link
    double deadline = 0.0;    // when the copy is needed
    double worth = 0.0;       // by how much its layer ends sooner if it is there and needed
  };

  double Stake(const api::RoutingObservation& observation);
  double PinnedValue(base::ExpertKey key) const;
  double ReusePerStep(base::ExpertKey key) const;
  void SelectRows(const api::StepPlan& plan);
  absl::Span<const std::int32_t> SelectExperts(const api::RoutingObservation& observation);
  void SettleGuesses(const api::RoutingObservation& observation);
  void KeepHostServed(const api::LaneState& lanes);
  void Prefetch(std::int32_t layer, const api::LaneState& lanes);
  void PrefetchLayer(std::int32_t target, std::size_t arm, double deadline, const api::LaneState& lanes);
  // Orders a guess if its slot can be had and that pays; false: none can be had.
  bool Guess(base::ExpertKey key, double probability, std::size_t arm, const Chance& chance,
             const api::LaneState& lanes);
  std::int32_t SlotForGuess();
  void UseHint(std::int32_t layer, const api::LaneState& lanes);
  void Promote(std::int32_t layer);
  double LinkStart(const api::LaneState& lanes) const;
  double MissSeconds(const api::LaneState& lanes) const;
  // Seconds by which a layer of so many experts ends sooner with one miss less than `misses`.
  double SavedByOneLess(double misses, double experts, const api::LaneState& lanes) const;
  double LayerSeconds(const api::LaneState& lanes) const;
  std::int32_t RoomForGuesses(const api::LaneState& lanes) const;
  const Demand& NextStepDemand(std::int32_t target);

  const HubParameters parameters_;
  const std::uint64_t expert_bytes_;
  const double admission_;           // as a difference of values
  std::vector<std::int32_t> index_;  // [num_layers]: among the MoE layers
  DecayedCounts counts_;
  std::vector<std::uint64_t> turns_;  // [num_layers]: steps that the counts of the layer have seen
  const std::unique_ptr<DemandForecaster> forecaster_;
  SplitPlanner planner_;
  PlanJudge plan_judge_;
  PrefetchJudge prefetch_judge_;
  ScoreJudge score_judge_;
  LookaheadBudget lookahead_;
  GuestSlots guests_;
  PinnedPromoter promoter_;
  HubStepCosts costs_;
  HubReport report_;
  bool wants_scores_ = true;

  // Of the step under way.
  api::LaneState lanes_;  // when it was told last
  double stake_ = 1.0;    // of the layer whose routing is told
  std::int64_t num_step_rows_ = 0;
  std::vector<Row> selected_;             // rows that the forecaster sees
  bool all_selected_ = false;             // these are all rows, in order
  std::vector<base::TokenId> tokens_;     // of selected_
  std::vector<base::SequenceId> owners_;  // [T]
  std::int32_t orders_in_layer_ = 0;
  std::int32_t guesses_left_ = 0;
  // The distance of the latest guess, until a layer's misses have been decided; -1: none since.
  std::int32_t latest_arm_ = -1;
  base::ExpertKey latest_guess_;

  double miss_share_ = 1.0;     // of layers that had to copy something at once
  double net_seconds_ = 0.0;    // of the judge of prefetch, when the last step ended
  double layer_seconds_ = 0.0;  // measured time between two layers' misses, without stalls; 0: not known
  std::vector<float> hints_;    // [num_keys]: rows of a waiting prompt
  std::vector<base::ExpertKey> host_served_;  // of the layer at hand
  std::vector<api::FetchOrder> orders_;
  Demand next_step_;
  std::vector<GuestSlots::Guess> settled_;  // scratch
  std::vector<float> scores_;               // scratch, [max(kMaxForecastRows, 1), E]
  std::vector<std::int32_t> experts_;       // scratch, [kMaxForecastRows, k]
  std::vector<float> wanted_;               // scratch, [E]
  std::vector<std::int32_t> likely_;        // scratch
  std::vector<base::ExpertKey> rising_;     // scratch
  std::vector<double> saved_;               // scratch
};

}  // namespace comoe::routing
