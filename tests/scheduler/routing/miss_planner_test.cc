#include "scheduler/routing/miss_planner.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace comoe::routing {
namespace {

api::LaneState Lanes() {
  api::LaneState lanes;
  lanes.link_seconds_per_expert = 1.0;
  lanes.device_seconds_per_expert = 0.1;
  lanes.host_seconds_per_expert = 0.5;
  lanes.host_seconds_per_row = 0.25;
  return lanes;
}

std::vector<api::ExpertDemand> Misses(const std::vector<std::int32_t>& rows) {
  std::vector<api::ExpertDemand> misses;
  for (const std::int32_t n : rows) {
    misses.push_back({{0, static_cast<std::int32_t>(misses.size())}, n});
  }
  return misses;
}

// One letter for each miss: f(etch) or h(ost).
std::string Plan(bool host_lane, const std::vector<std::int32_t>& rows, const std::vector<double>& values,
                 const api::LaneState& lanes) {
  MissPlanner planner(host_lane, 64);
  const std::vector<api::ExpertDemand> misses = Misses(rows);
  std::vector<api::MissDecision> decisions(misses.size(), {api::ServingDecision::kHit, 3});
  planner.Assign(misses, values, lanes, absl::MakeSpan(decisions));
  std::string letters;
  for (const api::MissDecision& decision : decisions) {
    EXPECT_NE(decision.serving, api::ServingDecision::kHit);
    EXPECT_EQ(decision.slot, api::kStagingSlot);
    letters += decision.serving == api::ServingDecision::kHost ? 'h' : 'f';
  }
  return letters;
}

TEST(MissPlannerTest, CopiesEverythingWithoutAHostLane) {
  EXPECT_EQ(Plan(false, {1, 1, 1}, {}, Lanes()), "fff");
  api::LaneState lanes = Lanes();
  lanes.host_seconds_per_expert = 0.0;
  EXPECT_EQ(Plan(true, {1, 1, 1}, {}, lanes), "fff");
}

TEST(MissPlannerTest, FewRowsGoToTheHostManyToTheDevice) {
  // 9 rows: 2.5 s on the host, 1.1 s by copy. Then single rows: .5 and 1.0 on the host before 2.1 by copy...
  EXPECT_EQ(Plan(true, {1, 9, 1}, {}, Lanes()), "hfh");
}

TEST(MissPlannerTest, ABusyLinkSendsMoreToTheHost) {
  api::LaneState lanes = Lanes();
  EXPECT_EQ(Plan(true, {4}, {}, lanes), "f");
  lanes.link_queue_seconds = 1.0;
  EXPECT_EQ(Plan(true, {4}, {}, lanes), "h");
}

TEST(MissPlannerTest, OfAsManyRowsTheMoreValuableIsCopied) {
  api::LaneState lanes = Lanes();
  lanes.host_seconds_per_expert = 1.2;
  EXPECT_EQ(Plan(true, {1, 1}, {}, lanes), "fh");
  EXPECT_EQ(Plan(true, {1, 1}, {1.0, 2.0}, lanes), "hf");
}

TEST(MissPlannerTest, BothLanesEndAboutTogether) {
  std::vector<std::int32_t> rows;
  for (std::int32_t i = 0; i < 40; ++i) {
    rows.push_back(1 + i % 4);
  }
  const std::string plan = Plan(true, rows, {}, Lanes());
  double link = 0.1, host = 0.0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    (plan[i] == 'h' ? host : link) += plan[i] == 'h' ? 0.5 + 0.25 * (rows[i] - 1) : 1.0;
  }
  EXPECT_NEAR(link, host, 1.0) << plan;
  EXPECT_LT(std::max(link, host), 0.6 * 40.1) << "no better than the link alone";
}

}  // namespace
}  // namespace comoe::routing
