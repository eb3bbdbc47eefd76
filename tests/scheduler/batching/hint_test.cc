// Who waits, and what of it the engine is told beforehand.
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "tests/scheduler/batching/scheduler_fixture.h"
#include "tests/support/fake_engine.h"

namespace comoe::batching {
namespace {

using testing::FakeEngine;
using testing::FakeEngineOptions;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Request Starting(const std::string& id, base::TokenId first, std::int64_t length, std::int64_t max_tokens) {
  Request request = MakeRequest(id, length, max_tokens);
  request.prompt = Prompt(length, first);
  return request;
}

TEST_F(SchedulerTest, WhoRunsAtOnceIsNotHinted) {
  Start();
  Submit(MakeRequest("a", 5, 4))->WaitFinished();
  Submit(MakeRequest("b", 40, 4))->WaitFinished();
  EXPECT_THAT(engine_->hints(), IsEmpty());
}

TEST_F(SchedulerTest, TheHeadOfTheQueueIsHintedOnceWhileItWaits) {
  SchedulerOptions options;
  options.max_batch_tokens = 6;
  Start({}, options);  // one runs at a time
  engine_->Hold();
  const auto first = Submit(Starting("a", 1, 3, 12));
  ASSERT_TRUE(engine_->WaitHeld());
  const auto second = Submit(Starting("b", 20, 9, 3));
  const auto third = Submit(Starting("c", 40, 4, 3));
  engine_->Release();
  for (const auto& observer : {first, second, third}) {
    observer->WaitFinished();
  }
  const std::vector<FakeEngine::Hint> hints = engine_->hints();
  ASSERT_THAT(hints, SizeIs(2));
  EXPECT_EQ(hints[0].tokens, Prompt(6, 20)) << "as far as its first chunk goes";
  EXPECT_EQ(hints[0].step, 1) << "before the first step that begins after it came";
  EXPECT_EQ(hints[1].tokens, Prompt(4, 40));
  EXPECT_GT(hints[1].step, hints[0].step) << "once it is the head";
}

TEST_F(SchedulerTest, APromptInMemoryIsNoPartOfTheHint) {
  SchedulerOptions options;
  options.max_batch_tokens = 6;
  FakeEngineOptions engine;
  engine.num_blocks = {};
  Start(engine, options);
  Submit(Starting("a", 1, 17, 1))->WaitFinished();
  engine_->Hold();
  const auto first = Submit(Starting("b", 30, 3, 8));
  ASSERT_TRUE(engine_->WaitHeld());
  const auto second = Submit(Starting("c", 1, 20, 2));
  engine_->Release();
  first->WaitFinished();
  second->WaitFinished();
  const std::vector<FakeEngine::Hint> hints = engine_->hints();
  ASSERT_THAT(hints, SizeIs(1));
  EXPECT_EQ(second->WaitFinished().usage.cached_prompt_tokens, 16);
  EXPECT_EQ(hints[0].tokens, Prompt(4, 17)) << "what is left behind four blocks of four";
}

TEST_F(SchedulerTest, WhoWasTakenInAndGetsNoRowYetIsHinted) {
  SchedulerOptions options;
  options.max_sequences = 4;
  options.max_batch_tokens = 8;
  FakeEngineOptions engine;
  engine.max_positions = 200;
  Start(engine, options);
  engine_->Hold();
  const auto first = Submit(Starting("a", 1, 40, 2));
  ASSERT_TRUE(engine_->WaitHeld());
  std::vector<std::shared_ptr<testing::RecordingObserver>> others;
  for (base::TokenId i = 0; i < 3; ++i) {
    others.push_back(Submit(Starting(std::string(1, static_cast<char>('b' + i)), i + 2, 30, 2)));
  }
  engine_->Release();
  first->WaitFinished();
  for (const auto& observer : others) {
    observer->WaitFinished();
  }
  // Each at most once, and always before its own first row.
  const std::vector<FakeEngine::Hint> hints = engine_->hints();
  EXPECT_FALSE(hints.empty());
  const std::vector<api::StepPlan> plans = engine_->plans();
  std::vector<base::TokenId> begun;
  for (const FakeEngine::Hint& hint : hints) {
    ASSERT_FALSE(hint.tokens.empty());
    EXPECT_THAT(begun, ::testing::Not(::testing::Contains(hint.tokens[0])));
    begun.push_back(hint.tokens[0]);
    bool ran_before = false;
    for (std::int64_t step = 0; step <= hint.step; ++step) {
      for (const api::PlanSpan& span : plans[static_cast<std::size_t>(step)].spans) {
        ran_before = ran_before || (span.start_position == 0 && span.tokens[0] == hint.tokens[0]);
      }
    }
    EXPECT_FALSE(ran_before) << hint.tokens[0];
  }
}

}  // namespace
}  // namespace comoe::batching
