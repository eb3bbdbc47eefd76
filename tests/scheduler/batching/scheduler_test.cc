#include "scheduler/batching/scheduler.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/scheduler/batching/scheduler_fixture.h"
#include "tests/support/fake_engine.h"
#include "tests/support/manual_clock.h"
#include "tests/support/recording_metrics.h"
#include "tests/support/recording_observer.h"

namespace comoe::batching {
namespace {

using ::testing::ElementsAre;
using testing::FakeEngine;
using testing::FakeEngineOptions;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ManualClock;
using testing::RecordingMetrics;
using testing::RecordingObserver;

TEST_F(SchedulerTest, ARequestRunsToItsLimit) {
  Start();
  const Request request = MakeRequest("a", 5, 4);
  const auto observer = Submit(request);
  const RequestOutcome outcome = observer->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kMaxTokens);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.matched_token, -1);
  EXPECT_EQ(outcome.usage.prompt_tokens, 5);
  EXPECT_EQ(outcome.usage.completion_tokens, 4);
  EXPECT_EQ(outcome.usage.cached_prompt_tokens, 0);
  EXPECT_EQ(observer->tokens(), Expected(request, 4));
  EXPECT_EQ(scheduler_->load().used_blocks, 0);
  EXPECT_EQ(scheduler_->load().total_blocks, 16);
}

TEST_F(SchedulerTest, AnyChunkGivesTheSameTokens) {
  const Request request = MakeRequest("a", 37, 6);
  for (const std::int64_t max_batch_tokens : {0, 1, 3, 4, 16, 1000}) {
    SchedulerOptions options;
    options.max_batch_tokens = max_batch_tokens;
    Start({}, options);
    const auto observer = Submit(request);
    observer->WaitFinished();
    EXPECT_EQ(observer->tokens(), Expected(request, 6)) << max_batch_tokens;
    const std::int64_t chunk = std::clamp<std::int64_t>(max_batch_tokens, 1, 16);  // the engine takes 16 rows
    EXPECT_EQ(engine_->num_steps(), (37 + chunk - 1) / chunk + 5) << max_batch_tokens;
    for (const api::StepPlan& plan : engine_->plans()) {
      EXPECT_LE(plan.num_rows(), chunk);
      EXPECT_EQ(plan.spans.size(), 1U);
    }
    TearDown();
  }
}

TEST_F(SchedulerTest, StepsOfOneRequest) {
  SchedulerOptions options;
  options.max_batch_tokens = 4;
  Start({}, options);
  Submit(MakeRequest("a", 10, 3))->WaitFinished();
  std::vector<std::vector<std::int64_t>> steps;
  for (const api::StepPlan& plan : engine_->plans()) {
    const api::PlanSpan& span = plan.spans[0];
    steps.push_back({static_cast<std::int64_t>(plan.step.value), span.start_position,
                     static_cast<std::int64_t>(span.tokens.size()), span.sample.has_value() ? 1 : 0,
                     static_cast<std::int64_t>(span.groups[0].blocks.size())});
  }
  EXPECT_THAT(steps,
              ElementsAre(ElementsAre(0, 0, 4, 0, 1), ElementsAre(1, 4, 4, 0, 2), ElementsAre(2, 8, 2, 1, 3),
                          ElementsAre(3, 10, 1, 1, 3), ElementsAre(4, 11, 1, 1, 3)));
}

TEST_F(SchedulerTest, OneAfterAnotherInTheOrderTheyCame) {
  Start();
  engine_->Hold();
  std::vector<std::shared_ptr<RecordingObserver>> observers;
  for (int i = 0; i < 4; ++i) {
    observers.push_back(Submit(MakeRequest(absl::StrCat(i), i == 0 ? 30 : 2, 2)));
  }
  ASSERT_TRUE(engine_->WaitHeld());
  EXPECT_EQ(scheduler_->load().running, 1);
  EXPECT_EQ(scheduler_->load().waiting, 3);
  EXPECT_EQ(metrics_.Value("requests_running"), 1);
  EXPECT_EQ(metrics_.Value("requests_waiting"), 3);
  EXPECT_TRUE(observers[0]->started());
  EXPECT_FALSE(observers[1]->started()) << "a short request does not overtake a long one";
  engine_->Release();
  for (const auto& observer : observers) {
    EXPECT_EQ(observer->WaitFinished().reason, FinishReason::kMaxTokens);
  }
  std::vector<std::uint64_t> order;
  for (const api::StepPlan& plan : engine_->plans()) {
    if (order.empty() || order.back() != plan.spans[0].sequence.value) {
      order.push_back(plan.spans[0].sequence.value);
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST_F(SchedulerTest, SeveralAtOnceGetWhatTheyWouldAlone) {
  SchedulerOptions options;
  options.max_sequences = 3;
  options.max_batch_tokens = 7;
  FakeEngineOptions engine;
  engine.num_blocks = {};
  engine.max_positions = 200;
  Start(engine, options);
  std::vector<Request> requests;
  std::vector<std::shared_ptr<RecordingObserver>> observers;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(MakeRequest(absl::StrCat(i), 3 + 5 * i, 8));
    observers.push_back(Submit(requests.back()));
  }
  for (std::size_t i = 0; i < observers.size(); ++i) {
    EXPECT_EQ(observers[i]->WaitFinished().reason, FinishReason::kMaxTokens);
    EXPECT_EQ(observers[i]->tokens(), Expected(requests[i], 8));
  }
}

TEST_F(SchedulerTest, WhoCameLastLosesItsMemoryAndGetsTheSameTokens) {
  SchedulerOptions options;
  options.max_sequences = 2;
  Start({}, options);  // 16 blocks of 4
  const Request request = MakeRequest("second", 20, 34);
  const auto both = SubmitTogether({MakeRequest("first", 20, 34), request});
  EXPECT_EQ(both[0]->WaitFinished().timing.preemptions, 0);
  const RequestOutcome outcome = both[1]->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kMaxTokens);
  EXPECT_GE(outcome.timing.preemptions, 1);
  EXPECT_EQ(both[1]->tokens(), Expected(request, 34));
  EXPECT_EQ(metrics_.Value("preemptions_total{kind=\"recompute\"}"),
            static_cast<double>(outcome.timing.preemptions));
  EXPECT_GT(metrics_.Value("tokens_discarded_total{reason=\"preempt_recompute\"}"), 0);
  EXPECT_EQ(metrics_.Value("prompt_tokens_total{source=\"computed\"}"), 40)
      << "what is computed again counts once";
}

TEST_F(SchedulerTest, APreemptionIsNotRepeatedForEver) {
  SchedulerOptions options;
  options.max_sequences = 6;
  Start({}, options);
  engine_->Hold();
  std::vector<std::shared_ptr<RecordingObserver>> observers;
  for (int i = 0; i < 6; ++i) {
    observers.push_back(Submit(MakeRequest(absl::StrCat(i), 4 + i, 50)));
  }
  engine_->Release();
  for (const auto& observer : observers) {
    const RequestOutcome outcome = observer->WaitFinished();
    EXPECT_EQ(outcome.reason, FinishReason::kMaxTokens);
    EXPECT_LE(outcome.timing.preemptions, 3);
  }
  EXPECT_GT(metrics_.Value("preemptions_total{kind=\"recompute\"}"), 0);
}

TEST_F(SchedulerTest, ADrainLetsAPreemptedRequestFinish) {
  SchedulerOptions options;
  options.max_sequences = 2;
  Start({}, options);
  engine_->Hold();
  const Request request = MakeRequest("second", 20, 34);
  const auto second = SubmitTogether({MakeRequest("first", 20, 34), request})[1];
  ASSERT_TRUE(engine_->WaitHeld());
  engine_->Permit(20);  // the second one waits without its memory
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (metrics_.Value("preemptions_total{kind=\"recompute\"}") == 0) {
    ASSERT_LT(absl::Now(), give_up) << "nobody lost its memory in 20 steps";
    engine_->WaitHeld(absl::Milliseconds(1));
  }
  scheduler_->BeginDrain();
  engine_->Release();
  EXPECT_EQ(second->WaitFinished().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(second->tokens(), Expected(request, 34));
}

TEST_F(SchedulerTest, ABeginningThatWasComputedIsNotComputedAgain) {
  Start();
  Request request = MakeRequest("a", 13, 3);
  EXPECT_EQ(Submit(request)->WaitFinished().usage.cached_prompt_tokens, 0);
  request.id = "b";
  const auto second = Submit(request);
  EXPECT_EQ(second->WaitFinished().usage.cached_prompt_tokens, 12);
  EXPECT_EQ(second->tokens(), Expected(request, 3));
  request.cache_salt = "mine";
  request.id = "c";
  EXPECT_EQ(Submit(request)->WaitFinished().usage.cached_prompt_tokens, 0);
  request.cache_salt = "";
  request.id = "d";
  request.prompt_logprobs = 0;
  EXPECT_EQ(Submit(request)->WaitFinished().usage.cached_prompt_tokens, 0) << "what is scored is computed";
  EXPECT_EQ(metrics_.Value("prefix_cache_lookup_tokens_total"), 39);
  EXPECT_EQ(metrics_.Value("prefix_cache_hit_tokens_total"), 12);
  EXPECT_GT(scheduler_->load().cached_blocks, 0);
}

TEST_F(SchedulerTest, PrefixesAreForgottenWhenAsked) {
  Start();
  Submit(MakeRequest("a", 13, 3))->WaitFinished();
  const auto forget = [this](bool force) {
    std::promise<absl::StatusOr<std::int64_t>> answer;
    scheduler_->ForgetPrefixes(
        force, [&](absl::StatusOr<std::int64_t> forgotten) { answer.set_value(std::move(forgotten)); });
    return answer.get_future().get();
  };
  EXPECT_EQ(forget(false).value(), 3);
  EXPECT_EQ(scheduler_->load().cached_blocks, 0);
  engine_->Hold();
  const auto running = Submit(MakeRequest("b", 13, 3));
  ASSERT_TRUE(engine_->WaitHeld());
  engine_->Permit(100);
  EXPECT_EQ(running->WaitFinished().usage.cached_prompt_tokens, 0);
  scheduler_->Stop(absl::InfiniteFuture());
  EXPECT_EQ(forget(true).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SchedulerTest, HigherPriorityRunsFirst) {
  Start();
  engine_->Hold();
  Submit(MakeRequest("running", 3, 2));
  ASSERT_TRUE(engine_->WaitHeld());
  Request low = MakeRequest("low", 3, 2);
  Request high = MakeRequest("high", 3, 2);
  low.priority = -1;
  high.priority = 1;
  const auto second = Submit(low);
  bool high_finished_first = false;
  const auto first = Submit(high);
  second->on_tokens = [&] { high_finished_first = first->finished(); };
  engine_->Release();
  second->WaitFinished();
  EXPECT_TRUE(high_finished_first);
}

TEST_F(SchedulerTest, EosEndsUnlessIgnored) {
  const Request request = MakeRequest("a", 3, 20);
  FakeEngineOptions options;
  std::vector<base::TokenId> tokens;
  {
    std::vector<base::TokenId> history = request.prompt;
    for (int i = 0; i < 20; ++i) {
      tokens.push_back(FakeEngine::NextToken(history, request.sampling.seed, options.vocab_size));
      history.push_back(tokens.back());
    }
  }
  options.eos_token_ids = {tokens[6]};
  const auto first =
      static_cast<std::int64_t>(std::find(tokens.begin(), tokens.end(), tokens[6]) - tokens.begin());
  Start(options);
  const auto observer = Submit(request);
  RequestOutcome outcome = observer->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kStopEos);
  EXPECT_EQ(outcome.matched_token, tokens[6]);
  EXPECT_EQ(outcome.usage.completion_tokens, first + 1) << "the EOS token is delivered and counted";
  EXPECT_EQ(observer->tokens().back(), tokens[6]);

  Request ignoring = request;
  ignoring.stop.ignore_eos = true;
  EXPECT_EQ(Submit(ignoring)->WaitFinished().reason, FinishReason::kMaxTokens);

  ignoring.stop.stop_token_ids = {tokens[6]};
  outcome = Submit(ignoring)->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kStopToken);
  EXPECT_EQ(outcome.matched_token, tokens[6]);
}

TEST_F(SchedulerTest, ContextLengthEndsWhatWantsMore) {
  Start();  // 64 positions
  const auto long_one = Submit(MakeRequest("a", 60, 100));
  EXPECT_EQ(long_one->WaitFinished().reason, FinishReason::kContextLength);
  EXPECT_EQ(long_one->tokens().size(), 4U);
  const auto exact = Submit(MakeRequest("b", 60, 4));
  EXPECT_EQ(exact->WaitFinished().reason, FinishReason::kMaxTokens);
  const auto last = Submit(MakeRequest("c", 63, 2));
  EXPECT_EQ(last->WaitFinished().reason, FinishReason::kContextLength);
  EXPECT_EQ(last->tokens().size(), 1U);
}

TEST_F(SchedulerTest, BlocksLimitTheContextToo) {
  FakeEngineOptions engine;
  engine.num_blocks = {5};  // 20 positions
  Start(engine);
  EXPECT_EQ(Refusal(MakeRequest("a", 20, 1)).code(), absl::StatusCode::kInvalidArgument);
  const auto observer = Submit(MakeRequest("b", 10, 100));
  EXPECT_EQ(observer->WaitFinished().reason, FinishReason::kContextLength);
  EXPECT_EQ(observer->tokens().size(), 10U);
}

TEST_F(SchedulerTest, WindowsAndRecurrentStateRunInFewBlocks) {
  const auto group = [](api::CacheGroup::Kind kind, std::int32_t block_tokens, std::int64_t window) {
    api::CacheGroup result;
    result.kind = kind;
    result.block_tokens = block_tokens;
    result.window_tokens = window;
    return result;
  };
  FakeEngineOptions engine;
  engine.cache_groups = {group(api::CacheGroup::Kind::kFullKv, 4, 0),
                         group(api::CacheGroup::Kind::kWindowKv, 2, 5),
                         group(api::CacheGroup::Kind::kRecurrent, 0, 0)};
  engine.num_blocks = {40, 4, 1};  // the window needs 3, so chunks are cut to what 4 hold
  engine.max_positions = 160;
  Start(engine);
  const Request request = MakeRequest("a", 50, 40);
  const auto observer = Submit(request);
  EXPECT_EQ(observer->WaitFinished().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(observer->tokens(), Expected(request, 40));
}

TEST_F(SchedulerTest, RefusesWhatCannotRun) {
  Start();
  EXPECT_THAT(std::string(Refusal(MakeRequest("a", 0, 1)).message()), HasSubstr("empty"));
  const absl::Status too_long = Refusal(MakeRequest("a", 64, 1));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("at most 64"));
  EXPECT_EQ(Refusal(MakeRequest("a", 3, 0)).code(), absl::StatusCode::kInvalidArgument);
  for (const base::TokenId token : {-1, 64}) {
    Request request = MakeRequest("a", 3, 1);
    request.prompt[1] = token;
    EXPECT_THAT(std::string(Refusal(request).message()), HasSubstr(absl::StrCat("token ", token)));
  }
  Request request = MakeRequest("a", 3, 1);
  request.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kInvalidArgument);
  request = MakeRequest("a", 3, 1);
  request.deadline = clock_.Now();
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine_->num_steps(), 0);
}

TEST_F(SchedulerTest, AnIdInFlightIsRefusedAndFreeOnceItsEndIsHeard) {
  Start();
  engine_->Hold();
  const auto first = Submit(MakeRequest("same", 3, 2));
  EXPECT_EQ(Refusal(MakeRequest("same", 3, 2)).code(), absl::StatusCode::kAlreadyExists);
  engine_->Release();
  first->WaitFinished();
  const auto second = Submit(MakeRequest("same", 3, 2));
  EXPECT_EQ(second->WaitFinished().reason, FinishReason::kMaxTokens);
}

TEST_F(SchedulerTest, AFullQueueRefuses) {
  SchedulerOptions options;
  options.max_waiting_requests = 2;
  Start({}, options);
  engine_->Hold();
  Submit(MakeRequest("running", 3, 2));
  ASSERT_TRUE(engine_->WaitHeld());
  Submit(MakeRequest("b", 3, 2));
  Submit(MakeRequest("c", 3, 2));
  const absl::Status refused = Refusal(MakeRequest("d", 3, 2));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 requests of 6 tokens are waiting"));
  EXPECT_EQ(scheduler_->load().waiting, 2);
}

TEST_F(SchedulerTest, CancelWhereverTheRequestIs) {
  SchedulerOptions options;
  options.max_batch_tokens = 4;
  Start({}, options);
  engine_->Hold();
  // Prefilling: the first of three chunks is under way.
  const auto prefilling = Submit(MakeRequest("prefilling", 12, 5));
  const auto waiting = Submit(MakeRequest("waiting", 3, 5));
  const auto decoding = Submit(MakeRequest("decoding", 3, 5));
  ASSERT_TRUE(engine_->WaitHeld());
  EXPECT_TRUE(scheduler_->Cancel("waiting"));
  EXPECT_TRUE(scheduler_->Cancel("waiting")) << "idempotent";
  EXPECT_TRUE(scheduler_->Cancel("prefilling"));
  EXPECT_FALSE(scheduler_->Cancel("unknown"));
  engine_->Permit(1);
  EXPECT_EQ(waiting->WaitFinished().reason, FinishReason::kAborted);
  EXPECT_FALSE(waiting->started());
  const RequestOutcome outcome = prefilling->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kAborted);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_THAT(prefilling->tokens(), IsEmpty());
  EXPECT_EQ(metrics_.Value("tokens_discarded_total{reason=\"abort\"}"), 4);

  engine_->Permit(1);  // the prompt and the first token of `decoding`
  decoding->WaitTokens(1);
  ASSERT_TRUE(engine_->WaitHeld());  // its second token is being made
  EXPECT_TRUE(scheduler_->Cancel("decoding"));
  engine_->Permit(1);
  EXPECT_EQ(decoding->WaitFinished().reason, FinishReason::kAborted);
  EXPECT_EQ(decoding->tokens().size(), 1U) << "no token of the step during which it was cancelled";
  EXPECT_EQ(metrics_.Value("tokens_discarded_total{reason=\"abort\"}"), 5);
  EXPECT_EQ(engine_->num_steps(), 3);
  EXPECT_EQ(scheduler_->load().used_blocks, 0);
}

TEST_F(SchedulerTest, ALateCancelDoesNotHitTheNextRequestOfThatId) {
  Start();
  engine_->Hold();
  const auto first = Submit(MakeRequest("same", 3, 1));
  ASSERT_TRUE(engine_->WaitHeld());
  const auto blocker = Submit(MakeRequest("blocker", 3, 1));
  EXPECT_TRUE(scheduler_->Cancel("same"));
  EXPECT_TRUE(scheduler_->Cancel("same"));
  engine_->Permit(1);
  EXPECT_EQ(first->WaitFinished().reason, FinishReason::kAborted);
  ASSERT_TRUE(engine_->WaitHeld());  // `blocker` runs: `same` has been retired
  const auto second = Submit(MakeRequest("same", 3, 1));
  engine_->Release();
  EXPECT_EQ(second->WaitFinished().reason, FinishReason::kMaxTokens);
  blocker->WaitFinished();
  EXPECT_FALSE(scheduler_->Cancel("same"));
}

TEST_F(SchedulerTest, DeadlinesHoldInTheQueueAndWhileRunning) {
  Start();
  engine_->Hold();
  Request running = MakeRequest("running", 3, 10);
  running.deadline = clock_.Now() + absl::Seconds(10);
  Request waiting = MakeRequest("waiting", 3, 10);
  waiting.deadline = clock_.Now() + absl::Seconds(5);
  const auto first = Submit(running);
  const auto second = Submit(waiting);
  const auto third = Submit(MakeRequest("patient", 3, 2));
  ASSERT_TRUE(engine_->WaitHeld());
  clock_.Advance(absl::Seconds(5));
  engine_->Permit(1);
  RequestOutcome outcome = second->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kDeadline);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(outcome.timing.queue, absl::Seconds(5));
  EXPECT_FALSE(second->started());
  first->WaitTokens(1);
  ASSERT_TRUE(engine_->WaitHeld());
  clock_.Advance(absl::Seconds(5));
  engine_->Permit(1);
  outcome = first->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kDeadline);
  EXPECT_EQ(outcome.usage.completion_tokens, 1);
  engine_->Release();
  EXPECT_EQ(third->WaitFinished().reason, FinishReason::kMaxTokens);
}

TEST_F(SchedulerTest, AFailingStepEndsItsRequestsAndTheThreadGoesOn) {
  Start();
  engine_->Hold();
  const auto failing = Submit(MakeRequest("failing", 3, 10));
  const Request next = MakeRequest("next", 9, 4);
  const auto good = Submit(next);
  ASSERT_TRUE(engine_->WaitHeld());
  engine_->FailStep(0, absl::InternalError("the device fell off"));
  engine_->Release();
  const RequestOutcome outcome = failing->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_EQ(outcome.status, absl::InternalError("the device fell off"));
  EXPECT_EQ(outcome.usage.completion_tokens, 1);
  EXPECT_EQ(good->WaitFinished().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(good->tokens(), Expected(next, 4)) << "rubbish of the failed step is overwritten";
}

// A device that is lost: every request ends with the reason, now and later, and whoever can end the process
// is told once.
TEST_F(SchedulerTest, ALostDeviceEndsEveryRequestAndIsTold) {
  SchedulerOptions options;
  std::atomic<int> told{0};
  options.engine_failed = [&told](const absl::Status& status) {
    EXPECT_EQ(status, absl::InternalError("an illegal address"));
    ++told;
  };
  Start({}, options);
  engine_->Hold();
  const auto first = Submit(MakeRequest("first", 3, 10));
  const auto second = Submit(MakeRequest("second", 9, 4));
  ASSERT_TRUE(engine_->WaitHeld());
  engine_->Lose(absl::InternalError("an illegal address"));
  engine_->Release();
  for (const auto* observer : {&first, &second}) {
    const RequestOutcome outcome = (*observer)->WaitFinished();
    EXPECT_EQ(outcome.reason, FinishReason::kError);
    EXPECT_EQ(outcome.status, absl::InternalError("an illegal address"));
  }
  EXPECT_EQ(Submit(MakeRequest("third", 3, 2))->WaitFinished().reason, FinishReason::kError);
  EXPECT_EQ(told.load(), 1);
}

// What one sequence lacked (an expert whose copy failed) ends that request; its neighbours of the same step
// get their tokens, and nothing of its rubbish is found by who begins alike.
TEST_F(SchedulerTest, AFailingSpanEndsItsRequestAlone) {
  Start();
  engine_->Hold();
  const Request doomed = MakeRequest("doomed", 11, 8);
  const Request beside = MakeRequest("beside", 9, 8);
  const auto failing = Submit(doomed);
  const auto good = Submit(beside);
  ASSERT_TRUE(engine_->WaitHeld());
  engine_->FailSpan(0, absl::DataLossError("expert 3 of layer 1 could not be had"));
  engine_->Release();
  const RequestOutcome outcome = failing->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kError);
  EXPECT_EQ(outcome.status, absl::DataLossError("expert 3 of layer 1 could not be had"));
  EXPECT_EQ(good->WaitFinished().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(good->tokens(), Expected(beside, 8));
  Request again = doomed;
  again.id = "again";
  const auto second = Submit(again);
  EXPECT_EQ(second->WaitFinished().reason, FinishReason::kMaxTokens);
  EXPECT_EQ(second->tokens(), Expected(again, 8));
}

// An engine that answers what nobody asked.
class LyingEngine final : public api::Engine {
 public:
  LyingEngine() : honest_({}) {}
  const api::ModelInfo& model_info() const override { return honest_.model_info(); }
  const api::EngineCapacity& capacity() const override { return honest_.capacity(); }
  absl::StatusOr<api::StepResult> Step(const api::StepPlan& plan) override {
    absl::StatusOr<api::StepResult> result = honest_.Step(plan);
    switch (steps_++) {
      case 0:
        result->spans.clear();
        break;
      case 1:
        result->spans[0].token.reset();
        break;
      case 2:
        result->spans[0].token = 64;
        break;
      case 3:
        ++result->spans[0].sequence.value;
        break;
      default:
        break;
    }
    return result;
  }
  absl::Status Truncate(base::SequenceId sequence, std::int64_t num_tokens) override {
    return honest_.Truncate(sequence, num_tokens);
  }
  absl::StatusOr<api::StateSnapshot> Snapshot(const std::vector<api::GroupState>& groups,
                                              std::int64_t n) override {
    return honest_.Snapshot(groups, n);
  }
  absl::Status Restore(const api::StateSnapshot& snapshot,
                       const std::vector<api::GroupState>& groups) override {
    return honest_.Restore(snapshot, groups);
  }

 private:
  FakeEngine honest_;
  int steps_ = 0;
};

TEST(SchedulerAnswerTest, AnAnswerThatDoesNotFitThePlanIsAnError) {
  LyingEngine engine;
  RecordingMetrics metrics;
  const std::unique_ptr<Scheduler> scheduler = MakeScheduler(engine, {}, metrics);
  for (int i = 0; i < 5; ++i) {
    auto observer = std::make_shared<RecordingObserver>();
    ASSERT_TRUE(scheduler->Submit(MakeRequest(absl::StrCat(i), 3, 1), observer).ok());
    const RequestOutcome outcome = observer->WaitFinished();
    EXPECT_EQ(outcome.reason, i < 4 ? FinishReason::kError : FinishReason::kMaxTokens);
    EXPECT_EQ(outcome.status.code(), i < 4 ? absl::StatusCode::kInternal : absl::StatusCode::kOk);
  }
}

TEST_F(SchedulerTest, DrainEndsWaitingOnesAndLetsRunningOnesFinish) {
  Start();
  engine_->Hold();
  const auto running = Submit(MakeRequest("running", 3, 3));
  const auto waiting = Submit(MakeRequest("waiting", 3, 3));
  ASSERT_TRUE(engine_->WaitHeld());
  scheduler_->BeginDrain();
  EXPECT_EQ(Refusal(MakeRequest("late", 3, 3)).code(), absl::StatusCode::kUnavailable);
  engine_->Permit(1);
  const RequestOutcome outcome = waiting->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kDraining);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(running->finished());
  engine_->Release();
  EXPECT_TRUE(scheduler_->Stop(absl::InfiniteFuture()));
  EXPECT_EQ(running->WaitFinished().reason, FinishReason::kMaxTokens);
}

TEST_F(SchedulerTest, StopEndsWhatIsLeftWhenTimeIsUp) {
  Start();
  engine_->Hold();
  const auto running = Submit(MakeRequest("running", 3, 50));
  const auto waiting = Submit(MakeRequest("waiting", 3, 3));
  ASSERT_TRUE(engine_->WaitHeld());
  std::thread stopper([this] { EXPECT_FALSE(scheduler_->Stop(clock_.Now())); });
  Request probe = MakeRequest("probe", 3, 3);
  probe.deadline = clock_.Now();  // refused either way; the code says when Stop has begun
  while (Refusal(probe).code() != absl::StatusCode::kUnavailable) {
    std::this_thread::yield();
  }
  engine_->Permit(1);
  EXPECT_EQ(waiting->WaitFinished().reason, FinishReason::kDraining);
  engine_->Release();
  stopper.join();
  const RequestOutcome outcome = running->WaitFinished();
  EXPECT_EQ(outcome.reason, FinishReason::kDraining);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(scheduler_->Stop(clock_.Now())) << "a second time, with nothing left";
  EXPECT_EQ(Refusal(MakeRequest("late", 3, 3)).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(scheduler_->Cancel("running"));
}

TEST_F(SchedulerTest, StopOfAnIdleSchedulerIsClean) {
  Start();
  EXPECT_TRUE(scheduler_->Stop(absl::InfinitePast()));
}

TEST_F(SchedulerTest, AnObserverMayCancelAndSubmit) {
  Start();
  auto observer = std::make_shared<RecordingObserver>();
  const auto next = std::make_shared<RecordingObserver>();
  bool once = true;  // of the scheduler's thread
  observer->on_tokens = [&] {
    if (std::exchange(once, false)) {
      EXPECT_TRUE(scheduler_->Cancel("self"));
      EXPECT_TRUE(scheduler_->Submit(MakeRequest("next", 3, 2), next).ok());
    }
  };
  ASSERT_TRUE(scheduler_->Submit(MakeRequest("self", 3, 10), observer).ok());
  observers_ = {observer, next};
  EXPECT_EQ(observer->WaitFinished().reason, FinishReason::kAborted);
  EXPECT_EQ(observer->tokens().size(), 1U);
  EXPECT_EQ(next->WaitFinished().reason, FinishReason::kMaxTokens);
}

TEST_F(SchedulerTest, MetricsAndTimingOfARequest) {
  SchedulerOptions options;
  options.max_batch_tokens = 4;
  Start({}, options);
  engine_->Hold();
  Submit(MakeRequest("before", 1, 1));
  ASSERT_TRUE(engine_->WaitHeld());
  Request request = MakeRequest("a", 6, 3);
  request.received = clock_.Now() - absl::Seconds(1);
  const auto observer = Submit(request);
  clock_.Advance(absl::Seconds(2));
  engine_->Permit(1);
  for (int step = 0; step < 4; ++step) {  // two chunks, two decodes
    observer->WaitStarted();
    ASSERT_TRUE(engine_->WaitHeld());
    clock_.Advance(absl::Seconds(3));
    engine_->Permit(1);
  }
  const RequestOutcome outcome = observer->WaitFinished();
  EXPECT_EQ(outcome.timing.queue, absl::Seconds(2));
  EXPECT_EQ(outcome.timing.prefill, absl::Seconds(6));
  EXPECT_EQ(outcome.timing.decode, absl::Seconds(6));
  EXPECT_EQ(outcome.timing.time_to_first_token, absl::Seconds(9));
  EXPECT_THAT(metrics_.Observations("request_queue_seconds"), ElementsAre(0, 2));
  EXPECT_THAT(metrics_.Observations("prefill_seconds"), ElementsAre(2, 6));
  EXPECT_THAT(metrics_.Observations("decode_seconds"), ElementsAre(0, 6));
  EXPECT_THAT(metrics_.Observations("step_seconds{phase=\"prefill\"}"), ElementsAre(2, 3, 3));
  EXPECT_THAT(metrics_.Observations("step_seconds{phase=\"decode\"}"), ElementsAre(3, 3));
  EXPECT_THAT(metrics_.Observations("step_tokens"), ElementsAre(1, 4, 2, 1, 1));
  EXPECT_EQ(metrics_.Value("prompt_tokens_total{source=\"computed\"}"), 7);
  EXPECT_EQ(metrics_.Value("generated_tokens_total"), 4);
  EXPECT_EQ(metrics_.Value("tokens_discarded_total{reason=\"abort\"}"), 0);
  EXPECT_EQ(metrics_.Value("engine_heartbeat_timestamp_seconds"), absl::ToUnixSeconds(clock_.Now()));
  EXPECT_EQ(scheduler_->load().last_progress, clock_.Now());
}

}  // namespace
}  // namespace comoe::batching
