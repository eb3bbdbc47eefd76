#include "engine/model/dispatch_plan.h"

#include <algorithm>
#include <vector>

#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::model {
namespace {

using ::testing::ElementsAre;

TEST(DispatchPlan, GroupsRowsByExpertInOrder) {
  DispatchPlan plan(3, 2, 4);
  plan.Build({3, 1, 1, 0, 3, 0});
  ASSERT_EQ(plan.groups().size(), 3U);
  EXPECT_EQ(plan.groups()[0].expert, 0);
  EXPECT_EQ(plan.groups()[1].expert, 1);
  EXPECT_EQ(plan.groups()[2].expert, 3);
  EXPECT_THAT(plan.rows(), ElementsAre(1, 2, 0, 1, 0, 2));
  EXPECT_THAT(plan.source(), ElementsAre(4, 2, 3, 0, 5, 1));
}

TEST(DispatchPlan, EverySlotServesItsRowAndExpert) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kTop = 4;
  constexpr std::int64_t kExperts = 16;
  DispatchPlan plan(kRows, kTop, kExperts);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<std::int32_t> experts;
    const auto rows = static_cast<std::int64_t>(base::RandomBits(seed, 0) % kRows) + 1;
    for (std::int64_t i = 0; i < rows * kTop; ++i) {
      experts.push_back(
          static_cast<std::int32_t>(base::RandomBits(seed, static_cast<std::uint64_t>(i) + 1) % kExperts));
    }
    plan.Build(experts);
    std::vector<std::int32_t> expert_of_slot(experts.size(), -1);
    std::int64_t slots = 0;
    for (const DispatchPlan::Group& group : plan.groups()) {
      EXPECT_EQ(group.first, slots);
      EXPECT_GT(group.count, 0);
      std::fill_n(expert_of_slot.begin() + group.first, group.count, group.expert);
      slots += group.count;
    }
    ASSERT_EQ(slots, rows * kTop);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const auto slot = static_cast<std::size_t>(plan.source()[i]);
      EXPECT_EQ(expert_of_slot[slot], experts[i]);
      EXPECT_EQ(plan.rows()[slot], static_cast<std::int32_t>(i / kTop));
    }
  }
}

TEST(DispatchPlan, ResultsOfTheHostLieBehindTheDevices) {
  DispatchPlan plan(3, 2, 4);
  plan.Build({3, 1, 1, 0, 3, 0});
  plan.MoveToHost(4, 2);  // expert 3
  EXPECT_THAT(plan.source(), ElementsAre(10, 2, 3, 0, 11, 1));
  plan.MoveToHost(0, 2);  // expert 0
  EXPECT_THAT(plan.source(), ElementsAre(10, 2, 3, 6, 11, 7));
  plan.Build({3, 1, 1, 0, 3, 0});
  EXPECT_THAT(plan.source(), ElementsAre(4, 2, 3, 0, 5, 1));
}

}  // namespace
}  // namespace comoe::model
