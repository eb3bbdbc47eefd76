// What a request may ask for besides tokens: log-probabilities, a prompt's scores, time limits, minimum
// lengths.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "tests/scheduler/batching/scheduler_fixture.h"

namespace comoe::batching {
namespace {

using testing::FakeEngine;
using testing::FakeEngineOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RecordingObserver;

using RequestOptionsTest = SchedulerTest;

MATCHER_P(IsRow, want, "") {
  const api::LogprobRow& expected = want;
  return arg.logprob == expected.logprob &&
         std::equal(arg.top.begin(), arg.top.end(), expected.top.begin(), expected.top.end(),
                    [](const api::TokenLogprob& a, const api::TokenLogprob& b) {
                      return a.id == b.id && a.logprob == b.logprob;
                    });
}

// Each token of `tokens` from `begin` on, scored under those before it.
std::vector<api::LogprobRow> Rows(const std::vector<base::TokenId>& tokens, std::size_t begin,
                                  std::int32_t num_top) {
  std::vector<api::LogprobRow> rows;
  for (std::size_t i = begin; i < tokens.size(); ++i) {
    rows.push_back(FakeEngine::Logprobs(absl::MakeConstSpan(tokens).first(i), tokens[i], num_top));
  }
  return rows;
}

void ExpectRows(const std::vector<api::LogprobRow>& got, const std::vector<api::LogprobRow>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_THAT(got[i], IsRow(want[i])) << i;
  }
}

TEST_F(RequestOptionsTest, LogprobsOfGeneratedTokens) {
  Start();
  Request request = MakeRequest("a", 5, 4);
  request.top_logprobs = 3;
  const auto observer = Submit(request);
  observer->WaitFinished();
  std::vector<base::TokenId> all = request.prompt;
  for (const base::TokenId token : Expected(request, 4)) {
    all.push_back(token);
  }
  ExpectRows(observer->logprobs(), Rows(all, 5, 3));
  EXPECT_THAT(observer->prompt_scores(), IsEmpty());

  const auto without = Submit(MakeRequest("b", 5, 4));
  without->WaitFinished();
  EXPECT_EQ(engine_->plans().back().spans[0].top_logprobs, -1) << "nothing is computed for nothing";
}

TEST_F(RequestOptionsTest, PromptScoresComeOnceForEachPositionWhateverTheChunks) {
  for (const std::int64_t max_batch_tokens : {1, 2, 5, 11, 12, 13, 1000}) {
    for (const std::int64_t length : {1, 2, 12, 37}) {
      SchedulerOptions options;
      options.max_batch_tokens = max_batch_tokens;
      Start({}, options);
      Request request = MakeRequest("a", length, 2);
      request.prompt_logprobs = 2;
      const auto observer = Submit(request);
      EXPECT_EQ(observer->WaitFinished().reason, FinishReason::kMaxTokens);
      ExpectRows(observer->prompt_scores(), Rows(request.prompt, 1, 2));
      EXPECT_EQ(observer->tokens(), Expected(request, 2));
      TearDown();
    }
  }
}

TEST_F(RequestOptionsTest, PrefillOnlyEndsWithoutAToken) {
  SchedulerOptions options;
  options.max_batch_tokens = 5;
  Start({}, options);
  for (const std::int32_t prompt_logprobs : {-1, 0, 20}) {
    for (const std::int64_t length : {1, 5, 12, 64}) {  // 64: no place for a token, and none is needed
      engine_->Hold();
      Request request = MakeRequest("a", length, 7);
      request.prompt = Prompt(length, 0);
      request.prompt_logprobs = prompt_logprobs;
      request.prefill_only = true;
      const auto observer = Submit(request);
      ASSERT_TRUE(engine_->WaitHeld());
      clock_.Advance(absl::Seconds(2));
      engine_->Release();
      const RequestOutcome outcome = observer->WaitFinished();
      EXPECT_EQ(outcome.reason, FinishReason::kMaxTokens);
      EXPECT_TRUE(outcome.status.ok());
      EXPECT_EQ(outcome.usage.prompt_tokens, length);
      EXPECT_EQ(outcome.usage.completion_tokens, 0);
      EXPECT_EQ(outcome.timing.prefill, absl::Seconds(2));
      EXPECT_THAT(observer->tokens(), IsEmpty());
      ExpectRows(observer->prompt_scores(), prompt_logprobs < 0 ? std::vector<api::LogprobRow>()
                                                                : Rows(request.prompt, 1, prompt_logprobs));
    }
  }
  for (const api::StepPlan& plan : engine_->plans()) {
    EXPECT_FALSE(plan.spans[0].sample.has_value()) << "the last row wants no sample";
  }
  EXPECT_EQ(metrics_.Value("generated_tokens_total"), 0);
  EXPECT_EQ(metrics_.Value("prompt_tokens_total{source=\"computed\"}") +
                metrics_.Value("prompt_tokens_total{source=\"prefix_cached\"}"),
            3 * (1 + 5 + 12 + 64));
}

TEST_F(RequestOptionsTest, PenaltiesGetTheWholeHistory) {
  Start();  // the fake engine checks every context
  Request request = MakeRequest("a", 20, 5);
  request.sampling.frequency_penalty = 0.5F;
  const auto observer = Submit(request);
  observer->WaitFinished();
  const api::SampleContext context = engine_->plans().back().spans[0].context;
  EXPECT_EQ(context.num_prompt, 20);
  EXPECT_EQ(context.tokens.size(), 24U);
}

TEST_F(RequestOptionsTest, MinTokensMasksWhatWouldEndTheCompletion) {
  FakeEngineOptions engine;
  engine.vocab_size = 8;  // EOS and stop tokens are half of it
  engine.eos_token_ids = {0, 1, 500};
  Start(engine);
  for (const bool ignore_eos : {false, true}) {
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      Request request = MakeRequest(absl::StrCat("a", seed), 3, 12);
      request.sampling.seed = seed;
      request.stop.stop_token_ids = {2, 3};
      request.stop.ignore_eos = ignore_eos;
      request.stop.min_tokens = 6;
      const auto observer = Submit(request);
      const RequestOutcome outcome = observer->WaitFinished();
      const std::vector<base::TokenId> tokens = observer->tokens();
      ASSERT_GE(tokens.size(), 6U);
      const std::vector<base::TokenId> masked =
          ignore_eos ? std::vector<base::TokenId>{2, 3} : std::vector<base::TokenId>{2, 3, 0, 1};
      std::vector<base::TokenId> history = request.prompt;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_EQ(tokens[i],
                  engine_->NextToken(history, seed, i < 6 ? masked : std::vector<base::TokenId>()));
        history.push_back(tokens[i]);
      }
      const bool stopped =
          std::find(masked.begin(), masked.end(), tokens.back()) != masked.end() && tokens.size() > 6;
      EXPECT_EQ(outcome.reason == FinishReason::kMaxTokens, !stopped);
    }
  }
}

TEST_F(RequestOptionsTest, MinTokensAtTheLimits) {
  FakeEngineOptions engine;
  engine.vocab_size = 2;
  engine.eos_token_ids = {0, 1};  // every mask leaves nothing, and is ignored
  Start(engine);
  Request request = MakeRequest("a", 1, 5);
  request.stop.min_tokens = 5;
  const auto all_masked = Submit(request);
  EXPECT_EQ(all_masked->WaitFinished().reason, FinishReason::kMaxTokens) << "what was masked ends nothing";
  EXPECT_EQ(all_masked->tokens().size(), 5U);
  request = MakeRequest("b", 1, 100);
  request.stop.min_tokens = 100;
  const auto too_many = Submit(request);
  EXPECT_EQ(too_many->WaitFinished().reason, FinishReason::kContextLength);
  EXPECT_EQ(too_many->tokens().size(), 63U);
  request = MakeRequest("c", 1, 100);
  EXPECT_EQ(Submit(request)->WaitFinished().usage.completion_tokens, 1);
}

TEST_F(RequestOptionsTest, TimeLimitsHoldInTheQueueAndWhileRunning) {
  Start();
  engine_->Hold();
  Request running = MakeRequest("running", 3, 10);
  running.time_limit = absl::Seconds(10);
  Request waiting = MakeRequest("waiting", 3, 10);
  waiting.received = clock_.Now() - absl::Seconds(2);
  waiting.time_limit = absl::Seconds(7);  // from `received`
  const auto first = Submit(running);
  const auto second = Submit(waiting);
  const auto third = Submit(MakeRequest("patient", 3, 2));
  ASSERT_TRUE(engine_->WaitHeld());
  clock_.Advance(absl::Seconds(5));
  engine_->Permit(1);
  RequestOutcome outcome = second->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kTimeLimit);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_FALSE(second->started());
  EXPECT_EQ(outcome.timing.queue, absl::Seconds(5));
  first->WaitTokens(1);
  ASSERT_TRUE(engine_->WaitHeld());
  clock_.Advance(absl::Seconds(5));
  engine_->Permit(1);
  outcome = first->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kTimeLimit);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.usage.completion_tokens, 2) << "the step under way is not wasted";
  EXPECT_EQ(first->tokens().size(), 2U);
  EXPECT_EQ(metrics_.Value("tokens_discarded_total{reason=\"abort\"}"), 0);
  engine_->Release();
  EXPECT_EQ(third->WaitFinished().reason, FinishReason::kMaxTokens);
}

TEST_F(RequestOptionsTest, ADeadlineComesBeforeATimeLimit) {
  Start();
  engine_->Hold();
  Request request = MakeRequest("a", 3, 10);
  request.deadline = clock_.Now() + absl::Seconds(3);
  request.time_limit = absl::Seconds(2);
  const auto observer = Submit(request);
  request.id = "b";
  const auto waiting = Submit(request);
  ASSERT_TRUE(engine_->WaitHeld());
  clock_.Advance(absl::Seconds(3));
  engine_->Release();
  EXPECT_EQ(observer->WaitFinished().reason, FinishReason::kDeadline);
  EXPECT_EQ(waiting->WaitFinished().reason, FinishReason::kDeadline);
}

TEST_F(RequestOptionsTest, AMatchedStopStringEndsARequestAsStopped) {
  Start();
  auto observer = std::make_shared<RecordingObserver>();
  bool matched = false;  // of the scheduler's thread
  observer->on_tokens = [&] {
    if (!matched && observer->tokens().size() == 3) {
      matched = true;
      EXPECT_TRUE(scheduler_->Cancel("a", CancelReason::kStopMatched));
      EXPECT_TRUE(scheduler_->Cancel("a", CancelReason::kAborted)) << "the first reason stays";
    }
  };
  ASSERT_TRUE(scheduler_->Submit(MakeRequest("a", 3, 10), observer).ok());
  observers_ = {observer};
  const RequestOutcome outcome = observer->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kStopString);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.usage.completion_tokens, 3);
  EXPECT_EQ(metrics_.Value("tokens_discarded_total{reason=\"abort\"}"), 0);
}

TEST_F(RequestOptionsTest, CancelReasonsOfRequestsThatWait) {
  Start();
  engine_->Hold();
  const auto running = Submit(MakeRequest("running", 3, 1));
  const auto stopped = Submit(MakeRequest("stopped", 3, 1));
  const auto aborted = Submit(MakeRequest("aborted", 3, 1));
  ASSERT_TRUE(engine_->WaitHeld());
  EXPECT_TRUE(scheduler_->Cancel("stopped", CancelReason::kStopMatched));
  EXPECT_TRUE(scheduler_->Cancel("aborted", CancelReason::kAborted));
  EXPECT_TRUE(scheduler_->Cancel("aborted", CancelReason::kStopMatched));
  engine_->Release();
  EXPECT_EQ(stopped->WaitFinished().reason, FinishReason::kStopString);
  EXPECT_EQ(aborted->WaitFinished().reason, FinishReason::kAborted);
}

TEST_F(RequestOptionsTest, RefusesOptionsOutOfRange) {
  Start();
  const auto refused = [this](const std::function<void(Request&)>& change) {
    Request request = MakeRequest("a", 3, 5);
    change(request);
    const absl::Status status = Refusal(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](Request& r) { r.stop.min_tokens = 6; }), HasSubstr("min_tokens is 6"));
  EXPECT_THAT(refused([](Request& r) { r.stop.min_tokens = -1; }), HasSubstr("min_tokens is -1"));
  EXPECT_THAT(refused([](Request& r) { r.stop.stop_token_ids = {1, 64}; }), HasSubstr("stop token 64"));
  EXPECT_THAT(refused([](Request& r) { r.stop.stop_token_ids = {-2}; }), HasSubstr("stop token -2"));
  EXPECT_THAT(refused([](Request& r) { r.top_logprobs = 21; }), HasSubstr("21 alternatives"));
  EXPECT_THAT(refused([](Request& r) { r.prompt_logprobs = -2; }), HasSubstr("-2 alternatives"));
  EXPECT_THAT(refused([](Request& r) { r.time_limit = absl::ZeroDuration(); }), HasSubstr("time_limit is 0"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.repetition_penalty = 3.0F; }),
              HasSubstr("repetition_penalty"));
  EXPECT_THAT(refused([](Request& r) {
                r.prompt = Prompt(65, 0);
                r.prompt.back() = 0;
                r.prefill_only = true;
              }),
              HasSubstr("at most 64"));
}

}  // namespace
}  // namespace comoe::batching
