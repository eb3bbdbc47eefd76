#include "engine/runtime/plan_check.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::runtime {
namespace {

struct Fixture {
  api::ModelInfo info;
  api::EngineCapacity capacity;
  api::StepPlan plan;

  Fixture() {
    info.vocab_size = 100;
    api::CacheGroup full;
    full.block_tokens = 16;
    api::CacheGroup window = full;
    window.kind = api::CacheGroup::Kind::kWindowKv;
    window.window_tokens = 8;
    info.cache_groups = {full, window};
    capacity = {.max_rows = 32, .max_sequences = 2, .num_blocks = {10, 10}, .max_positions = 64};
    api::PlanSpan span;
    span.start_position = 30;
    span.tokens = {1, 2, 3, 4};
    // Positions 30 to 33; the window reaches back to 23, so its first block is not needed.
    span.groups = {{{{0}, {1}, {2}}}, {{base::kNoBlock, {4}, {5}}}};
    span.logits = api::LogitsMode::kLast;
    span.sample.emplace();
    plan.spans = {span};
  }
};

TEST(CheckPlan, AcceptsAGoodPlan) {
  const Fixture f;
  EXPECT_TRUE(CheckPlan(f.plan, f.info, f.capacity).ok()) << CheckPlan(f.plan, f.info, f.capacity);
}

void Score(api::StepPlan& plan, std::vector<base::TokenId> tokens) {
  plan.spans[0].logits = api::LogitsMode::kAll;
  plan.spans[0].score = std::move(tokens);
}

TEST(CheckPlan, AcceptsEveryOption) {
  Fixture f;
  Score(f.plan, {0, 99, 5, 6});
  api::PlanSpan& span = f.plan.spans[0];
  span.score_top_logprobs = span.top_logprobs = api::kMaxTopLogprobs;
  span.sample->repetition_penalty = 1.5F;
  span.context.tokens.assign(34, 7);
  span.context.num_prompt = 34;
  span.context.masked = {0, 99};
  EXPECT_TRUE(CheckPlan(f.plan, f.info, f.capacity).ok()) << CheckPlan(f.plan, f.info, f.capacity);
}

struct BadPlan {
  const char* name;
  std::function<void(api::StepPlan&)> change;
  const char* message;
};

class CheckPlanRefuses : public ::testing::TestWithParam<BadPlan> {};

TEST_P(CheckPlanRefuses, WithItsReason) {
  Fixture f;
  GetParam().change(f.plan);
  const absl::Status status = CheckPlan(f.plan, f.info, f.capacity);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(GetParam().message));
}

const BadPlan kBadPlans[] = {
    {"NoSpans", [](api::StepPlan& p) { p.spans.clear(); }, "no spans"},
    {"TooManySpans", [](api::StepPlan& p) { p.spans.resize(3, p.spans[0]); }, "3 sequences"},
    {"NoTokens", [](api::StepPlan& p) { p.spans[0].tokens.clear(); }, "span 0: no tokens"},
    {"TooManyRows",
     [](api::StepPlan& p) {
       p.spans[0].start_position = 0;
       p.spans[0].tokens.resize(33, 1);
       p.spans[0].groups[1].blocks[0] = {6};
     },
     "33 rows"},
    {"TokenOutOfRange", [](api::StepPlan& p) { p.spans[0].tokens[1] = 100; }, "token 100"},
    {"TokenNegative", [](api::StepPlan& p) { p.spans[0].tokens[1] = -1; }, "token -1"},
    {"PositionNegative", [](api::StepPlan& p) { p.spans[0].start_position = -1; }, "positions"},
    {"PositionTooHigh", [](api::StepPlan& p) { p.spans[0].start_position = 61; }, "go beyond the 64"},
    {"PositionAbsurd",
     [](api::StepPlan& p) { p.spans[0].start_position = std::numeric_limits<std::int64_t>::max(); },
     "go beyond the 64"},
    {"GroupMissing", [](api::StepPlan& p) { p.spans[0].groups.pop_back(); }, "1 cache groups"},
    {"BlockMissing", [](api::StepPlan& p) { p.spans[0].groups[0].blocks.pop_back(); },
     "cache group 0: 2 blocks"},
    {"BlockOutOfRange", [](api::StepPlan& p) { p.spans[0].groups[0].blocks[0] = {10}; }, "block 10"},
    {"FullGroupWithHole", [](api::StepPlan& p) { p.spans[0].groups[0].blocks[0] = base::kNoBlock; },
     "block -1"},
    {"WindowWithHole", [](api::StepPlan& p) { p.spans[0].groups[1].blocks[1] = base::kNoBlock; },
     "cache group 1: block -1"},
    {"SampleWithoutLogits", [](api::StepPlan& p) { p.spans[0].logits = api::LogitsMode::kNone; },
     "LogitsMode"},
    {"BadSampling",
     [](api::StepPlan& p) { p.spans[0].sample->temperature = std::numeric_limits<float>::quiet_NaN(); },
     "temperature"},
    {"ScoreWithoutAllLogits", [](api::StepPlan& p) { p.spans[0].score = {1}; }, "kAll"},
    {"ScoreOfMoreThanTheRows",
     [](api::StepPlan& p) {
       Score(p, {1, 2, 3, 4, 5});
     },
     "5 tokens to score after 4"},
    {"ScoreOutOfRange",
     [](api::StepPlan& p) {
       Score(p, {1, 100});
     },
     "to score: token 100"},
    {"ScoreTooManyAlternatives",
     [](api::StepPlan& p) {
       Score(p, {1});
       p.spans[0].score_top_logprobs = 21;
     },
     "score_top_logprobs: 21"},
    {"TooManyAlternatives", [](api::StepPlan& p) { p.spans[0].top_logprobs = 21; }, "top_logprobs: 21"},
    {"AlternativesNegative", [](api::StepPlan& p) { p.spans[0].top_logprobs = -2; }, "top_logprobs: -2"},
    {"MaskOutOfRange",
     [](api::StepPlan& p) {
       p.spans[0].context.masked = {5, -1};
     },
     "masked: token -1"},
    {"PenaltyWithoutContext", [](api::StepPlan& p) { p.spans[0].sample->presence_penalty = 1.0F; },
     "draw after 34 tokens penalises, and its context has 0"},
    {"ContextOutOfRange",
     [](api::StepPlan& p) {
       p.spans[0].sample->frequency_penalty = 1.0F;
       p.spans[0].context.tokens.assign(34, 100);
     },
     "context: token 100"},
    {"PromptLongerThanTheContext", [](api::StepPlan& p) { p.spans[0].context.num_prompt = 1; },
     "a prompt of 1 tokens in a context of 0"},
};
INSTANTIATE_TEST_SUITE_P(All, CheckPlanRefuses, ::testing::ValuesIn(kBadPlans),
                         [](const ::testing::TestParamInfo<BadPlan>& bad) { return bad.param.name; });

}  // namespace
}  // namespace comoe::runtime
