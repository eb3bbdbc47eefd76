#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/routing/resident_director.h"
#include "scheduler/routing/trace_recorder.h"

namespace comoe::routing {
namespace {

using ::testing::ElementsAre;

api::ModelInfo Model() {
  api::ModelInfo model;
  model.num_layers = 3;
  model.num_moe_layers = 2;
  model.num_experts = 4;
  return model;
}

TEST(ResidentDirectorTest, EveryExpertIsInTheSlotOfItsNumber) {
  const std::unique_ptr<api::ExpertDirector> director = MakeResidentDirector(Model());
  EXPECT_EQ(director->policy(), "resident");
  director->BeginStep(api::StepPlan{});
  for (const std::int32_t layer : {0, 2}) {
    EXPECT_THAT(director->slots(layer).slot, ElementsAre(0, 1, 2, 3));
  }
  director->EndStep();
}

TEST(ResidentDirectorTest, AnswersAMissWithAStagingSlot) {
  const std::unique_ptr<api::ExpertDirector> director = MakeResidentDirector(Model());
  const std::vector<api::ExpertDemand> misses = {{{1, 3}, 2}, {{1, 0}, 1}};
  std::vector<api::MissDecision> decisions(misses.size(), {api::ServingDecision::kHit, 5});
  director->DecideMisses(1, misses, api::LaneState{}, absl::MakeSpan(decisions));
  for (const api::MissDecision& decision : decisions) {
    EXPECT_EQ(decision.serving, api::ServingDecision::kFetch);
    EXPECT_EQ(decision.slot, api::kStagingSlot);
  }
}

// Notes what reaches the inner director.
class InnerDirector final : public api::ExpertDirector {
 public:
  explicit InnerDirector(std::vector<int>* calls) : calls_(calls) { slots_.slot = {7}; }
  absl::string_view policy() const override { return "inner"; }
  void BeginStep(const api::StepPlan& plan) override { calls_->push_back(static_cast<int>(plan.num_rows())); }
  const api::SlotMap& slots(std::int32_t /*layer*/) const override { return slots_; }
  void DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> /*misses*/,
                    const api::LaneState& lanes, absl::Span<api::MissDecision> decisions) override {
    decisions[0] = {api::ServingDecision::kFetch, lanes.queued_guesses};
  }
  std::vector<api::FetchOrder> InitialOrders() override { return {orders_}; }
  absl::Span<const api::FetchOrder> Orders(std::int32_t layer, const api::LaneState& lanes) override {
    calls_->push_back(200 + layer + lanes.queued_guesses);
    return orders_;
  }
  void OnVacated(base::Tier /*tier*/, std::int32_t slot, base::ExpertKey /*key*/, bool usable) override {
    calls_->push_back(300 + slot + (usable ? 0 : 50));
  }
  void ObserveRouting(const api::RoutingObservation& observation) override {
    calls_->push_back(100 + observation.layer);
  }
  void EndStep() override { calls_->push_back(-1); }

 private:
  std::vector<int>* const calls_;
  const std::vector<api::FetchOrder> orders_ = {{{2, 1}, base::Tier::kPinned, 4}};
  api::SlotMap slots_;
};

TEST(TraceRecorderTest, TellsWhichTokenEachRowWasAndPassesEverythingOn) {
  std::vector<int> calls;
  std::vector<std::vector<std::int64_t>> seen;  // layer, sequence, position, token, first expert
  const std::unique_ptr<api::ExpertDirector> director = MakeTraceRecorder(
      std::make_unique<InnerDirector>(&calls),
      [&seen](const api::RoutingObservation& observation, absl::Span<const TraceRow> rows) {
        for (std::size_t t = 0; t < rows.size(); ++t) {
          const auto k = static_cast<std::size_t>(observation.experts_per_token);
          seen.push_back({observation.layer, static_cast<std::int64_t>(rows[t].sequence.value),
                          rows[t].position, rows[t].token, observation.experts[t * k]});
        }
      });
  EXPECT_EQ(director->policy(), "inner");
  EXPECT_THAT(director->slots(0).slot, ElementsAre(7));

  api::StepPlan plan;
  plan.spans.resize(2);
  plan.spans[0].sequence = base::SequenceId{5};
  plan.spans[0].start_position = 8;
  plan.spans[0].tokens = {40, 41};
  plan.spans[1].sequence = base::SequenceId{6};
  plan.spans[1].tokens = {50};
  director->BeginStep(plan);
  api::LaneState lanes;
  lanes.queued_guesses = 9;
  std::vector<api::MissDecision> decisions(1, {api::ServingDecision::kHit, 0});
  director->DecideMisses(1, std::vector<api::ExpertDemand>{{{1, 3}, 2}}, lanes, absl::MakeSpan(decisions));
  EXPECT_EQ(decisions[0].serving, api::ServingDecision::kFetch);
  EXPECT_EQ(decisions[0].slot, 9);
  EXPECT_EQ(director->InitialOrders().at(0).slot, 4);
  EXPECT_EQ(director->Orders(1, lanes).at(0).tier, base::Tier::kPinned);
  director->OnVacated(base::Tier::kDevice, 6, {1, 3}, false);

  const std::vector<std::int32_t> experts = {3, 1, 2, 0, 1, 2};
  const std::vector<float> weights(6, 0.5F);
  api::RoutingObservation observation;
  observation.layer = 2;
  observation.experts_per_token = 2;
  observation.experts = experts;
  observation.weights = weights;
  director->ObserveRouting(observation);
  director->EndStep();

  EXPECT_THAT(calls, ElementsAre(3, 210, 356, 102, -1));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(2, 5, 8, 40, 3), ElementsAre(2, 5, 9, 41, 2),
                                ElementsAre(2, 6, 0, 50, 1)));
}

}  // namespace
}  // namespace comoe::routing
