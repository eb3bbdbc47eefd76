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

TEST(ResidentDirectorTest, AnswersAMissWithTheHost) {
  const std::unique_ptr<api::ExpertDirector> director = MakeResidentDirector(Model());
  const std::vector<api::ExpertDemand> misses = {{{1, 3}, 2}, {{1, 0}, 1}};
  std::vector<api::ServingDecision> decisions(misses.size(), api::ServingDecision::kHit);
  director->DecideMisses(1, misses, absl::MakeSpan(decisions));
  EXPECT_THAT(decisions, ElementsAre(api::ServingDecision::kHost, api::ServingDecision::kHost));
}

// Notes what reaches the inner director.
class InnerDirector final : public api::ExpertDirector {
 public:
  explicit InnerDirector(std::vector<int>* calls) : calls_(calls) { slots_.slot = {7}; }
  absl::string_view policy() const override { return "inner"; }
  void BeginStep(const api::StepPlan& plan) override { calls_->push_back(static_cast<int>(plan.num_rows())); }
  const api::SlotMap& slots(std::int32_t /*layer*/) const override { return slots_; }
  void DecideMisses(std::int32_t /*layer*/, absl::Span<const api::ExpertDemand> /*misses*/,
                    absl::Span<api::ServingDecision> decisions) override {
    decisions[0] = api::ServingDecision::kFetch;
  }
  void ObserveRouting(const api::RoutingObservation& observation) override {
    calls_->push_back(100 + observation.layer);
  }
  void EndStep() override { calls_->push_back(-1); }

 private:
  std::vector<int>* const calls_;
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
  std::vector<api::ServingDecision> decisions(1, api::ServingDecision::kHit);
  director->DecideMisses(1, std::vector<api::ExpertDemand>{{{1, 3}, 2}}, absl::MakeSpan(decisions));
  EXPECT_EQ(decisions[0], api::ServingDecision::kFetch);

  const std::vector<std::int32_t> experts = {3, 1, 2, 0, 1, 2};
  const std::vector<float> weights(6, 0.5F);
  api::RoutingObservation observation;
  observation.layer = 2;
  observation.experts_per_token = 2;
  observation.experts = experts;
  observation.weights = weights;
  director->ObserveRouting(observation);
  director->EndStep();

  EXPECT_THAT(calls, ElementsAre(3, 102, -1));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(2, 5, 8, 40, 3), ElementsAre(2, 5, 9, 41, 2),
                                ElementsAre(2, 6, 0, 50, 1)));
}

}  // namespace
}  // namespace comoe::routing
