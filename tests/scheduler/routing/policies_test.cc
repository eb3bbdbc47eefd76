#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/routing/policy.h"

namespace comoe::routing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Layers 1 and 3 of 4 are MoE.
TierShape Shape(std::int32_t num_experts, std::int32_t device_slots) {
  TierShape shape;
  shape.num_layers = 4;
  shape.moe_layers = {1, 3};
  shape.num_experts = num_experts;
  shape.experts_per_token = 1;
  shape.device_slots = device_slots;
  return shape;
}

std::unique_ptr<api::ExpertDirector> Make(absl::string_view name, const TierShape& shape,
                                          const PolicyOptions& options = {}) {
  absl::StatusOr<Policy> policy = MakePolicy(name, shape, options);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.ok() ? std::move(policy->director) : nullptr;
}

api::StepPlan DecodePlan(std::size_t num_rows) {
  api::StepPlan plan;
  plan.spans.resize(num_rows);
  for (api::PlanSpan& span : plan.spans) {
    span.start_position = 9;
    span.tokens = {0};
  }
  return plan;
}

// Plays one layer: routing, then decisions about what the map lacks. Returns the slots decided (-1: staging,
// -2: host), in order of expert.
std::vector<std::int32_t> RunLayer(api::ExpertDirector& director, std::int32_t layer,
                                   const std::vector<std::int32_t>& experts,
                                   const api::LaneState& lanes = {}) {
  api::RoutingObservation observation;
  observation.layer = layer;
  observation.experts_per_token = 1;
  observation.experts = experts;
  director.ObserveRouting(observation);
  const std::vector<std::int32_t> map = director.slots(layer).slot;
  std::vector<api::ExpertDemand> misses;
  for (std::int32_t e = 0; e < static_cast<std::int32_t>(map.size()); ++e) {
    const auto rows = static_cast<std::int32_t>(std::count(experts.begin(), experts.end(), e));
    if (rows > 0 && map[static_cast<std::size_t>(e)] < 0) {
      misses.push_back({{layer, e}, rows});
    }
  }
  std::vector<api::MissDecision> decisions(misses.size());
  director.DecideMisses(layer, misses, lanes, absl::MakeSpan(decisions));
  std::vector<std::int32_t> slots;
  for (const api::MissDecision& decision : decisions) {
    slots.push_back(decision.serving == api::ServingDecision::kHost ? -2 : decision.slot);
  }
  return slots;
}

std::vector<std::int32_t> RunDecode(api::ExpertDirector& director, std::int32_t layer,
                                    const std::vector<std::int32_t>& experts) {
  director.BeginStep(DecodePlan(experts.size()));
  std::vector<std::int32_t> slots = RunLayer(director, layer, experts);
  director.EndStep();
  return slots;
}

TEST(MakePolicyTest, RefusesWhatItDoesNotKnow) {
  const absl::Status unknown = MakePolicy("best", Shape(4, 2), {}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  for (const char* name : kPolicyNames) {
    EXPECT_THAT(std::string(unknown.message()), HasSubstr(name));
  }
  const absl::Status small = MakePolicy("resident", Shape(4, 7), {}).status();
  EXPECT_EQ(small.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(small.message()), HasSubstr("8 experts, and there are 7"));
}

TEST(MakePolicyTest, RefusesNumbersOutOfRange) {
  const auto refused = [](const TierShape& shape, const PolicyOptions& options) {
    return MakePolicy("simple", shape, options).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused(Shape(4, 0), {}));
  EXPECT_TRUE(refused(Shape(0, 2), {}));
  EXPECT_TRUE(refused(Shape(4, -1), {}));
  TierShape shape = Shape(4, 2);
  shape.moe_layers = {3, 1};
  EXPECT_TRUE(refused(shape, {}));
  shape.moe_layers = {4};
  EXPECT_TRUE(refused(shape, {}));
  shape.moe_layers = {};
  EXPECT_TRUE(refused(shape, {}));
  shape = Shape(4, 2);
  shape.experts_per_token = 5;
  EXPECT_TRUE(refused(shape, {}));
  shape = Shape(2'000'000'000, 2);
  EXPECT_TRUE(refused(shape, {}));
  PolicyOptions options;
  options.hot_counts = {1, 2, 3};
  EXPECT_TRUE(refused(Shape(4, 2), options));
  options.hot_counts.assign(16, std::nan(""));
  EXPECT_TRUE(refused(Shape(4, 2), options));
  options = {};
  options.window = 0;
  EXPECT_TRUE(refused(Shape(4, 2), options));
  options = {};
  options.prefetch_margin = std::nan("");
  EXPECT_TRUE(refused(Shape(4, 2), options));
}

TEST(ResidentPolicyTest, FillsTheDeviceAtStart) {
  const auto director = Make("resident", Shape(2, 5));
  EXPECT_EQ(director->InitialOrders().size(), 4U);
  EXPECT_THAT(RunDecode(*director, 1, {0, 1}), IsEmpty());
  EXPECT_THAT(RunDecode(*director, 3, {0, 1}), IsEmpty());
}

TEST(NaivePolicyTest, KeepsNothing) {
  const auto director = Make("naive", Shape(4, 8));
  EXPECT_THAT(director->InitialOrders(), IsEmpty());
  EXPECT_THAT(RunDecode(*director, 1, {2, 3}), ElementsAre(-1, -1));
  EXPECT_THAT(RunDecode(*director, 1, {2, 3}), ElementsAre(-1, -1));
}

TEST(StaticPolicyTest, KeepsTheHottestAndTheNextHottestArePinned) {
  TierShape shape = Shape(3, 2);
  shape.pinned_holds_all = false;
  shape.pinned_slots = 2;
  PolicyOptions options;
  options.hot_counts = {9, 9, 9, /**/ 1, 5, 0, /**/ 9, 9, 9, /**/ 4, 3, 2};
  const auto director = Make("static", shape, options);
  std::vector<std::vector<std::int32_t>> orders;
  for (const api::FetchOrder& order : director->InitialOrders()) {
    EXPECT_EQ(order.reason, base::CopyReason::kWarmup);
    orders.push_back({static_cast<std::int32_t>(order.tier), order.slot, order.key.layer, order.key.expert});
  }
  EXPECT_THAT(orders, ElementsAre(ElementsAre(0, 0, 1, 1), ElementsAre(0, 1, 3, 0), ElementsAre(1, 0, 3, 1),
                                  ElementsAre(1, 1, 3, 2)));
  EXPECT_THAT(RunDecode(*director, 1, {1, 2}), ElementsAre(-1));
  director->OnVacated(base::Tier::kDevice, 0, {1, 1}, true);
  EXPECT_THAT(RunDecode(*director, 1, {1, 2}), ElementsAre(-1, -1));
}

TEST(StaticPolicyTest, SaysWhenItDoesNotKnowTheHottest) {
  absl::StatusOr<Policy> policy = MakePolicy("static", Shape(3, 3), {});
  ASSERT_TRUE(policy.ok());
  EXPECT_TRUE(policy->hot_set_is_guess);
  EXPECT_THAT(policy->director->slots(1).slot, ElementsAre(0, 2, -1));
  EXPECT_THAT(policy->director->slots(3).slot, ElementsAre(1, -1, -1));
  PolicyOptions options;
  options.hot_counts.assign(12, 1.0);
  EXPECT_FALSE(MakePolicy("static", Shape(3, 3), options)->hot_set_is_guess);
}

TEST(LruPolicyTest, TheLeastRecentlyUsedMakesRoom) {
  const auto director = Make("lru", Shape(8, 2));
  EXPECT_THAT(RunDecode(*director, 1, {4}), ElementsAre(0));
  EXPECT_THAT(RunDecode(*director, 3, {5}), ElementsAre(1));
  EXPECT_THAT(RunDecode(*director, 1, {4}), IsEmpty());
  EXPECT_THAT(RunDecode(*director, 1, {6}), ElementsAre(1));
  EXPECT_THAT(RunDecode(*director, 3, {5}), ElementsAre(0));
}

TEST(LruPolicyTest, WhatTheLayerNeedsIsNotDisplaced) {
  const auto director = Make("lru", Shape(8, 2));
  EXPECT_THAT(RunDecode(*director, 1, {4, 5, 6}), ElementsAre(0, 1, -1));
  EXPECT_THAT(RunDecode(*director, 1, {5, 7, 6}), ElementsAre(0, -1));
}

TEST(LruPolicyTest, RoutingThatComesLateProtectsTheWholeLayer) {
  const auto director = Make("lru", Shape(8, 2));
  RunDecode(*director, 1, {4});
  RunDecode(*director, 3, {5});
  director->BeginStep(DecodePlan(1));
  std::vector<api::MissDecision> decisions(2);
  director->DecideMisses(1, std::vector<api::ExpertDemand>{{{1, 6}, 1}, {{1, 7}, 1}}, {},
                         absl::MakeSpan(decisions));
  EXPECT_EQ(decisions[0].slot, 1) << "4 is of this layer, and may be needed";
  EXPECT_EQ(decisions[1].slot, api::kStagingSlot);
}

TEST(LruPolicyTest, VacatedAndLostSlots) {
  const auto director = Make("lru", Shape(8, 2));
  RunDecode(*director, 1, {4, 5});
  director->OnVacated(base::Tier::kDevice, 0, {1, 4}, true);
  EXPECT_THAT(RunDecode(*director, 1, {4, 5}), ElementsAre(0));
  director->OnVacated(base::Tier::kDevice, 1, {1, 5}, false);
  EXPECT_THAT(RunDecode(*director, 1, {4, 5}), ElementsAre(-1));
  EXPECT_THAT(RunDecode(*director, 1, {5}), ElementsAre(0));
}

TEST(HostLaneTest, AnyPolicyMayUseIt) {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = 1.0;
  lanes.host_seconds_per_expert = 0.4;
  for (const char* name : {"naive", "static", "lru", "simple"}) {
    for (const bool host_lane : {false, true}) {
      PolicyOptions options;
      options.host_lane = host_lane;
      const auto director = Make(name, Shape(8, 0), options);
      director->BeginStep(DecodePlan(3));
      EXPECT_THAT(RunLayer(*director, 1, {4, 5, 6}, lanes),
                  host_lane ? ElementsAre(-2, -2, -1) : ElementsAre(-1, -1, -1))
          << name;
    }
  }
}

TEST(SimplePolicyTest, AMissPassesByIfAllElseIsUsedMore) {
  const auto director = Make("simple", Shape(8, 1));
  RunDecode(*director, 1, {4});
  RunDecode(*director, 1, {4});
  EXPECT_THAT(RunDecode(*director, 3, {5}), ElementsAre(-1));
  EXPECT_THAT(RunDecode(*director, 3, {5}), ElementsAre(0)) << "used as often as what it displaces";
}

TEST(SimplePolicyTest, PrefillDoesNotDisplaceTheDecodeSet) {
  for (const char* name : {"lru", "simple"}) {
    const auto director = Make(name, Shape(8, 3));
    RunDecode(*director, 1, {4, 5});
    api::StepPlan plan = DecodePlan(1);
    plan.spans.resize(2);
    plan.spans[1].tokens = {0, 0, 0, 0};
    director->BeginStep(plan);
    EXPECT_THAT(RunLayer(*director, 1, {6, 0, 1, 2, 3}), ElementsAre(-1, -1, -1, -1, 2))
        << name << ": the decode row takes the free slot, prefill none";
    director->BeginStep(plan);
    EXPECT_THAT(RunLayer(*director, 1, {7, 0, 1, 2, 3}), ElementsAre(-1, -1, -1, -1, 0)) << name;
  }
}

TEST(SimplePolicyTest, PrefetchesWhatTheWindowPrefersForTheNextLayer) {
  const auto director = Make("simple", Shape(8, 1));
  for (int i = 0; i < 3; ++i) {
    RunDecode(*director, 1, {4});
  }
  // Its copy failed, so that the slot is free and an expert of layer 3 gets it.
  director->OnVacated(base::Tier::kDevice, 0, {1, 4}, true);
  EXPECT_THAT(RunDecode(*director, 3, {5}), ElementsAre(0));
  api::LaneState lanes;
  director->BeginStep(DecodePlan(1));
  ASSERT_EQ(director->Orders(-1, lanes).size(), 1U);
  EXPECT_EQ(director->Orders(-1, lanes).size(), 0U) << "it is on its way";
  EXPECT_THAT(director->slots(1).slot, ElementsAre(-1, -1, -1, -1, 0, -1, -1, -1));
}

TEST(SimplePolicyTest, AfterTheLastLayerComesTheFirst) {
  const auto director = Make("simple", Shape(8, 2));
  for (int i = 0; i < 4; ++i) {
    RunDecode(*director, 1, {4});
  }
  director->OnVacated(base::Tier::kDevice, 0, {1, 4}, true);
  director->BeginStep(DecodePlan(1));
  RunLayer(*director, 3, {5});
  api::LaneState lanes;
  lanes.queued_guesses = 2;
  EXPECT_THAT(director->Orders(3, lanes), IsEmpty()) << "enough guesses wait already";
  lanes.queued_guesses = 0;
  const absl::Span<const api::FetchOrder> orders = director->Orders(3, lanes);
  ASSERT_EQ(orders.size(), 1U);
  EXPECT_EQ(orders[0].key, (base::ExpertKey{1, 4}));
  EXPECT_EQ(orders[0].tier, base::Tier::kDevice);
  EXPECT_EQ(orders[0].reason, base::CopyReason::kPrefetch);
}

TEST(SimplePolicyTest, WhatIsUsedRisesToThePinnedTier) {
  TierShape shape = Shape(8, 0);
  shape.pinned_holds_all = false;
  shape.pinned_slots = 2;
  const auto director = Make("simple", shape);
  EXPECT_EQ(director->InitialOrders().size(), 2U);  // expert 0 of both layers
  std::vector<std::size_t> num_orders;
  for (int i = 0; i < 3; ++i) {
    director->BeginStep(DecodePlan(1));
    RunLayer(*director, 1, {4});
    const absl::Span<const api::FetchOrder> orders = director->Orders(1, {});
    num_orders.push_back(orders.size());
    if (!orders.empty()) {
      EXPECT_EQ(orders[0].key, (base::ExpertKey{1, 4}));
      EXPECT_EQ(orders[0].tier, base::Tier::kPinned);
    }
    director->EndStep();
  }
  EXPECT_THAT(num_orders, ElementsAre(0, 1, 0)) << "at two uses more, and once";
}

}  // namespace
}  // namespace comoe::routing
