#include "scheduler/batching/stop_conditions.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace comoe::batching {
namespace {

TEST(LimitTokensTest, TheLesserOfBothLimits) {
  struct Case {
    std::int64_t max_tokens, prompt, positions, want;
    FinishReason reason;
  };
  for (const Case& test :
       {Case{10, 5, 100, 10, FinishReason::kMaxTokens}, Case{95, 5, 100, 95, FinishReason::kMaxTokens},
        Case{96, 5, 100, 95, FinishReason::kContextLength},
        Case{std::numeric_limits<std::int64_t>::max(), 5, 100, 95, FinishReason::kContextLength},
        Case{1, 99, 100, 1, FinishReason::kMaxTokens}, Case{2, 99, 100, 1, FinishReason::kContextLength}}) {
    const TokenLimit limit = LimitTokens(test.max_tokens, test.prompt, test.positions);
    EXPECT_EQ(limit.max_new_tokens, test.want);
    EXPECT_EQ(limit.reason, test.reason);
  }
}

constexpr base::TokenId kEos = 2;
constexpr base::TokenId kStop = 40;

struct StopCase {
  std::string name;
  base::TokenId token;
  std::int64_t num_generated;  // of a limit of 5
  bool ignore_eos;
  std::vector<base::TokenId> stop_token_ids;
  std::optional<FinishReason> reason;
  std::int64_t min_tokens = 0;
};

class StopTest : public ::testing::TestWithParam<StopCase> {};

TEST_P(StopTest, Decides) {
  const StopCase& test = GetParam();
  StopConditions conditions;
  conditions.ignore_eos = test.ignore_eos;
  conditions.stop_token_ids = test.stop_token_ids;
  conditions.min_tokens = test.min_tokens;
  const std::vector<base::TokenId> eos = {kEos, 3};
  for (const FinishReason limit : {FinishReason::kMaxTokens, FinishReason::kContextLength}) {
    const std::optional<StopDecision> stop =
        DecideStop(conditions, eos, TokenLimit{5, limit}, test.token, test.num_generated);
    ASSERT_EQ(stop.has_value(), test.reason.has_value());
    if (stop.has_value()) {
      const bool by_limit = *test.reason == FinishReason::kMaxTokens;
      EXPECT_EQ(stop->reason, by_limit ? limit : *test.reason);
      EXPECT_EQ(stop->matched_token, by_limit ? -1 : test.token);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, StopTest,
    ::testing::Values(StopCase{"plain", 7, 1, false, {}, std::nullopt},
                      StopCase{"last", 7, 5, false, {}, FinishReason::kMaxTokens},
                      StopCase{"eos", kEos, 1, false, {}, FinishReason::kStopEos},
                      StopCase{"second_eos", 3, 1, false, {}, FinishReason::kStopEos},
                      StopCase{"eos_at_the_limit", kEos, 5, false, {}, FinishReason::kStopEos},
                      StopCase{"ignored_eos", kEos, 1, true, {}, std::nullopt},
                      StopCase{"ignored_eos_at_the_limit", kEos, 5, true, {}, FinishReason::kMaxTokens},
                      StopCase{"stop_token", kStop, 1, false, {9, kStop}, FinishReason::kStopToken},
                      StopCase{
                          "stop_token_and_ignored_eos", kStop, 1, true, {kStop}, FinishReason::kStopToken},
                      StopCase{"eos_as_stop_token", kEos, 1, true, {kEos}, FinishReason::kStopToken},
                      StopCase{"eos_before_stop_token", kEos, 1, false, {kEos}, FinishReason::kStopEos},
                      StopCase{"eos_below_min_tokens", kEos, 2, false, {}, std::nullopt, 2},
                      StopCase{"eos_after_min_tokens", kEos, 3, false, {}, FinishReason::kStopEos, 2},
                      StopCase{"stop_token_below_min_tokens", kStop, 2, false, {kStop}, std::nullopt, 2},
                      StopCase{"limit_is_min_tokens", kStop, 5, false, {kStop}, FinishReason::kMaxTokens, 5}),
    [](const ::testing::TestParamInfo<StopCase>& tested) { return tested.param.name; });

TEST(StopTokensTest, WhatEndsACompletionAndIsInTheVocabulary) {
  StopConditions conditions;
  const std::vector<base::TokenId> eos = {kEos, 3, 1000};
  EXPECT_EQ(StopTokens(conditions, eos, 100), (std::vector<base::TokenId>{kEos, 3}));
  conditions.stop_token_ids = {kStop, 7};
  EXPECT_EQ(StopTokens(conditions, eos, 100), (std::vector<base::TokenId>{kStop, 7, kEos, 3}));
  conditions.ignore_eos = true;
  EXPECT_EQ(StopTokens(conditions, eos, 100), (std::vector<base::TokenId>{kStop, 7}));
}

TEST(FinishReasonNameTest, EachHasItsOwn) {
  EXPECT_EQ(FinishReasonName(FinishReason::kStopEos), "stop_eos");
  EXPECT_EQ(FinishReasonName(FinishReason::kStopToken), "stop_token");
  EXPECT_EQ(FinishReasonName(FinishReason::kMaxTokens), "max_tokens");
  EXPECT_EQ(FinishReasonName(FinishReason::kContextLength), "context_length");
  EXPECT_EQ(FinishReasonName(FinishReason::kStopString), "stop_string");
  EXPECT_EQ(FinishReasonName(FinishReason::kTimeLimit), "time_limit");
  EXPECT_EQ(FinishReasonName(FinishReason::kAborted), "aborted");
  EXPECT_EQ(FinishReasonName(FinishReason::kDeadline), "deadline");
  EXPECT_EQ(FinishReasonName(FinishReason::kDraining), "draining");
  EXPECT_EQ(FinishReasonName(FinishReason::kError), "error");
}

}  // namespace
}  // namespace comoe::batching
