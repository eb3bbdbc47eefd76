// Random operations against the scheduler and a fake engine. Whatever is done, every accepted request ends
// once, with the tokens it would have got alone and a reason that something explains; all blocks come back.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/batching/scheduler.h"
#include "scheduler/batching/stop_conditions.h"
#include "tests/support/fake_engine.h"
#include "tests/support/manual_clock.h"
#include "tests/support/recording_metrics.h"
#include "tests/support/recording_observer.h"

namespace comoe::batching {
namespace {

using testing::FakeEngine;
using testing::FakeEngineOptions;
using ::testing::IsEmpty;
using testing::ManualClock;
using testing::RecordingMetrics;
using testing::RecordingObserver;

constexpr std::int64_t kMaxPositions = 48;

// Draws of one seed, one after another. Thread-compatible.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  // In [0, n).
  std::int64_t Roll(std::int64_t n) {
    return static_cast<std::int64_t>(base::RandomBits(seed_, draws_++) % static_cast<std::uint64_t>(n));
  }
  bool Chance(std::int64_t one_in) { return Roll(one_in) == 0; }

 private:
  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
};

struct Submission {
  Request request;
  std::shared_ptr<RecordingObserver> observer;
  bool cancelled = false;                          // by anybody, at any time
  bool stopped = false;                            // cancelled because a stop string matched
  absl::Time time_limit = absl::InfiniteFuture();  // not after it
};

struct World {
  std::string name;
  std::int64_t max_sequences;
  std::int64_t max_batch_tokens;
  std::vector<api::CacheGroup> cache_groups;
  std::vector<std::int32_t> num_blocks;

  friend std::ostream& operator<<(std::ostream& out, const World& world) { return out << world.name; }
};

api::CacheGroup Group(api::CacheGroup::Kind kind, std::int32_t block_tokens, std::int64_t window_tokens = 0) {
  api::CacheGroup group;
  group.kind = kind;
  group.block_tokens = block_tokens;
  group.window_tokens = window_tokens;
  return group;
}

std::vector<World> Worlds() {
  using Kind = api::CacheGroup::Kind;
  const std::vector<api::CacheGroup> mixed = {Group(Kind::kFullKv, 4), Group(Kind::kWindowKv, 2, 7),
                                              Group(Kind::kRecurrent, 0)};
  return {{"one", 1, 8, {Group(Kind::kFullKv, 4)}, {12}},
          {"one_row_chunks", 1, 1, {Group(Kind::kFullKv, 5)}, {10}},
          {"one_of_all_groups", 1, 6, mixed, {12, 5, 1}},
          {"four", 4, 8, {Group(Kind::kFullKv, 4)}, {60}},
          {"four_short_of_blocks", 4, 8, mixed, {20, 12, 3}},
          {"six_short_of_blocks", 6, 8, {Group(Kind::kFullKv, 4)}, {16}},
          {"five_with_a_window", 5, 9, {Group(Kind::kFullKv, 2), Group(Kind::kWindowKv, 2, 7)}, {30, 20}}};
}

FakeEngineOptions EngineOptions(const World& world) {
  FakeEngineOptions options;
  options.vocab_size = 24;
  options.eos_token_ids = {3};
  options.cache_groups = world.cache_groups;
  options.num_blocks = world.num_blocks;
  options.max_positions = kMaxPositions;
  return options;
}

Request RandomRequest(Dice& dice, const std::string& id, absl::Time now) {
  Request request;
  request.id = id;
  const bool common = dice.Chance(2);  // begins like others do
  for (std::int64_t length = 1 + dice.Roll(dice.Chance(4) ? kMaxPositions + 2 : 12); length > 0; --length) {
    const auto at = static_cast<std::int64_t>(request.prompt.size());
    request.prompt.push_back(static_cast<base::TokenId>(common && at < 16 ? at : dice.Roll(24)));
  }
  request.priority = static_cast<std::int32_t>(dice.Roll(3)) - 1;
  request.cache_salt = dice.Chance(4) ? "salt" : "";
  request.sampling.seed = static_cast<std::uint64_t>(dice.Roll(5));
  request.stop.max_tokens = 1 + dice.Roll(dice.Chance(5) ? 100 : 12);
  request.stop.ignore_eos = dice.Chance(3);
  if (dice.Chance(3)) {
    request.stop.stop_token_ids = {static_cast<base::TokenId>(dice.Roll(24))};
  }
  if (dice.Chance(3)) {
    request.deadline = now + absl::Seconds(dice.Roll(20));
  }
  if (dice.Chance(4)) {
    request.time_limit = absl::Seconds(1 + dice.Roll(20));
  }
  if (dice.Chance(3)) {
    request.stop.min_tokens = dice.Roll(request.stop.max_tokens + 1);
  }
  request.top_logprobs = static_cast<std::int32_t>(dice.Roll(4)) - 1;
  request.prompt_logprobs = dice.Chance(3) ? static_cast<std::int32_t>(dice.Roll(3)) : -1;
  request.prefill_only = dice.Chance(8);
  request.sampling.presence_penalty = dice.Chance(4) ? 1.0F : 0.0F;
  return request;
}

bool RefusalIsDeserved(const absl::Status& status, const Request& request) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return static_cast<std::int64_t>(request.prompt.size()) + (request.prefill_only ? 0 : 1) >
             kMaxPositions;
    case absl::StatusCode::kDeadlineExceeded:
      return request.deadline != absl::InfiniteFuture();
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return true;
    default:
      return false;
  }
}

// What happens to a request that nothing disturbs.
struct Undisturbed {
  std::vector<base::TokenId> tokens;
  StopDecision stop;
  std::vector<float> prompt_scores;
};

Undisturbed RunAlone(const Request& request, const FakeEngine& engine) {
  const TokenLimit limit =
      LimitTokens(request.stop.max_tokens, static_cast<std::int64_t>(request.prompt.size()), kMaxPositions);
  const std::vector<base::TokenId> stop_tokens =
      StopTokens(request.stop, engine.model_info().eos_token_ids, engine.model_info().vocab_size);
  Undisturbed result;
  std::vector<base::TokenId> history = request.prompt;
  for (std::size_t i = 1; i < history.size() && request.prompt_logprobs >= 0; ++i) {
    result.prompt_scores.push_back(
        FakeEngine::Logprobs(absl::MakeConstSpan(history).first(i), history[i], 0).logprob);
  }
  while (!request.prefill_only) {
    const bool masks = static_cast<std::int64_t>(result.tokens.size()) < request.stop.min_tokens;
    history.push_back(
        engine.NextToken(history, request.sampling.seed, masks ? stop_tokens : std::vector<base::TokenId>()));
    result.tokens.push_back(history.back());
    if (const std::optional<StopDecision> stop =
            DecideStop(request.stop, engine.model_info().eos_token_ids, limit, history.back(),
                       static_cast<std::int64_t>(result.tokens.size()))) {
      result.stop = *stop;
      return result;
    }
  }
  return result;  // kMaxTokens
}

// They come in order, and before the first token all of them.
void CheckPromptScores(const Submission& submission, const Undisturbed& alone, bool complete) {
  std::vector<float> scores;
  for (const api::LogprobRow& row : submission.observer->prompt_scores()) {
    scores.push_back(row.logprob);
    ASSERT_EQ(static_cast<std::int32_t>(row.top.size()), submission.request.prompt_logprobs);
  }
  ASSERT_LE(scores.size(), alone.prompt_scores.size());
  ASSERT_TRUE(std::equal(scores.begin(), scores.end(), alone.prompt_scores.begin()));
  ASSERT_TRUE(!complete || scores.size() == alone.prompt_scores.size());
}

// What else may have ended a request, besides itself.
struct Excuses {
  absl::Time latest;
  bool failing_steps = false;
  bool drained = false;
};

void CheckEnd(const Submission& submission, const FakeEngine& engine, const Excuses& excuses) {
  const Request& request = submission.request;
  ASSERT_EQ(submission.observer->num_finished(), 1) << request.id;
  ASSERT_EQ(submission.observer->violation(), "") << request.id;
  const RequestOutcome outcome = submission.observer->WaitFinished();
  const std::vector<base::TokenId> tokens = submission.observer->tokens();
  const Undisturbed alone = RunAlone(request, engine);
  ASSERT_LE(tokens.size(), alone.tokens.size());
  ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), alone.tokens.begin())) << request.id;
  CheckPromptScores(submission, alone, !tokens.empty() || outcome.reason == FinishReason::kMaxTokens);
  ASSERT_EQ(outcome.usage.prompt_tokens, static_cast<std::int64_t>(request.prompt.size()));
  switch (outcome.reason) {
    case FinishReason::kAborted:
      ASSERT_TRUE(submission.cancelled);
      ASSERT_TRUE(outcome.status.ok());
      break;
    case FinishReason::kStopString:
      ASSERT_TRUE(submission.stopped);
      ASSERT_TRUE(outcome.status.ok());
      break;
    case FinishReason::kTimeLimit:
      ASSERT_LE(submission.time_limit, excuses.latest);
      ASSERT_TRUE(outcome.status.ok());
      break;
    case FinishReason::kDeadline:
      ASSERT_LE(request.deadline, excuses.latest);
      ASSERT_EQ(outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
      break;
    case FinishReason::kError:
      ASSERT_TRUE(excuses.failing_steps);
      ASSERT_FALSE(outcome.status.ok());
      break;
    case FinishReason::kDraining:
      ASSERT_TRUE(excuses.drained);
      ASSERT_EQ(outcome.status.code(), absl::StatusCode::kUnavailable);
      break;
    default:
      ASSERT_EQ(outcome.reason, alone.stop.reason) << request.id;
      ASSERT_EQ(outcome.matched_token, alone.stop.matched_token);
      ASSERT_EQ(tokens.size(), alone.tokens.size());
      ASSERT_TRUE(outcome.status.ok());
  }
}

void CheckAfterwards(const std::vector<Submission>& submissions, const FakeEngine& engine,
                     const Scheduler& scheduler, const RecordingMetrics& metrics, const Excuses& excuses) {
  ASSERT_THAT(engine.violations(), IsEmpty());
  std::size_t delivered = 0;
  for (const Submission& submission : submissions) {
    CheckEnd(submission, engine, excuses);
    if (::testing::Test::HasFatalFailure()) {
      return;
    }
    delivered += submission.observer->tokens().size();
  }
  const LoadSnapshot load = scheduler.load();
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.waiting, 0);
  EXPECT_EQ(load.used_blocks, 0);
  EXPECT_EQ(metrics.Value("requests_running"), 0);
  EXPECT_EQ(metrics.Value("requests_waiting"), 0);
  EXPECT_EQ(metrics.Value("generated_tokens_total"), static_cast<double>(delivered));
  EXPECT_EQ(metrics.Observations("request_queue_seconds").size(), submissions.size());
  EXPECT_EQ(metrics.num_bad_increments(), 0);
  EXPECT_EQ(metrics.Value("kv_blocks{state=\"used\"}"), 0);
}

// COMOE_TEST_SEED and COMOE_TEST_OPERATIONS repeat or lengthen a run.
std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  std::uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class SchedulerPropertyTest : public ::testing::TestWithParam<World> {};

// The engine stops in every step until told to go on, so that operations fall before, into and after steps.
TEST_P(SchedulerPropertyTest, OperationsBetweenAndDuringSteps) {
  const World& world = GetParam();
  const std::uint64_t seed = FromEnvironment("COMOE_TEST_SEED", 20);
  const std::uint64_t operations = FromEnvironment("COMOE_TEST_OPERATIONS", 20000);
  SCOPED_TRACE(absl::StrCat("COMOE_TEST_SEED=", seed));
  Dice dice(seed);
  std::map<std::string, int> ends;
  for (std::uint64_t done = 0; done < operations;) {
    ManualClock clock;
    FakeEngine engine(EngineOptions(world));
    engine.ForgetPlans();
    engine.Hold();
    RecordingMetrics metrics;
    SchedulerOptions options;
    options.max_waiting_requests = 8;
    options.max_batch_tokens = world.max_batch_tokens;
    options.max_sequences = world.max_sequences;
    options.now = [&clock] { return clock.Now(); };
    const std::unique_ptr<Scheduler> scheduler = MakeScheduler(engine, options, metrics);
    std::vector<Submission> submissions;
    Excuses excuses;
    for (const std::uint64_t end = done + 500; done < end; ++done) {
      const std::int64_t kind = dice.Roll(24);
      const std::string id = absl::StrCat("r", dice.Roll(12));
      if (kind < 8) {
        Submission submission{RandomRequest(dice, id, clock.Now()), std::make_shared<RecordingObserver>()};
        const absl::Status status = scheduler->Submit(submission.request, submission.observer);
        ASSERT_TRUE(status.ok() || RefusalIsDeserved(status, submission.request)) << status;
        if (status.ok()) {
          submission.time_limit = clock.Now() + submission.request.time_limit;
          submissions.push_back(std::move(submission));
        }
      } else if (kind < 10) {
        const bool matched = dice.Chance(2);
        if (scheduler->Cancel(id, matched ? CancelReason::kStopMatched : CancelReason::kAborted)) {
          const auto last = std::find_if(submissions.rbegin(), submissions.rend(),
                                         [&id](const Submission& each) { return each.request.id == id; });
          (matched ? last->stopped : last->cancelled) = true;
        }
      } else if (kind == 10 && dice.Chance(2)) {
        if (dice.Chance(2)) {
          engine.FailSpan(static_cast<std::size_t>(dice.Roll(3)), absl::InternalError("a span that fails"));
        } else {
          engine.FailStep(dice.Roll(3), absl::InternalError("a step that fails"));
        }
        excuses.failing_steps = true;
      } else if (kind == 10 && dice.Chance(4)) {
        scheduler->ForgetPrefixes(dice.Chance(2), [](const absl::StatusOr<std::int64_t>& /*forgotten*/) {});
      } else if (kind == 11) {
        clock.Advance(absl::Seconds(dice.Roll(4)));
      } else {
        engine.Permit(1 + dice.Roll(3));
        if (const LoadSnapshot load = scheduler->load(); load.running + load.waiting > 0) {
          engine.WaitHeld(absl::Milliseconds(1));  // lets the engine catch up; nothing depends on it
        }
      }
    }
    excuses.latest = clock.Now();
    const std::int64_t ending = dice.Roll(3);
    if (ending == 0) {  // everything that waits or runs is cut off
      excuses.drained = true;
      engine.Release();
      scheduler->Stop(absl::InfinitePast());
    } else if (ending == 1) {  // running ones finish
      excuses.drained = true;
      engine.Release();
      ASSERT_TRUE(scheduler->Stop(absl::InfiniteFuture()));
    } else {  // all finish
      engine.Release();
      for (const Submission& submission : submissions) {
        submission.observer->WaitFinished();
      }
      ASSERT_TRUE(scheduler->Stop(absl::InfiniteFuture()));
    }
    CheckAfterwards(submissions, engine, *scheduler, metrics, excuses);
    if (HasFatalFailure() || HasNonfatalFailure()) {
      return;
    }
    for (const Submission& submission : submissions) {
      ++ends[std::string(FinishReasonName(submission.observer->WaitFinished().reason))];
    }
  }
  std::string seen;
  for (const auto& [reason, count] : ends) {
    absl::StrAppend(&seen, reason, " ", count, ", ");
  }
  std::printf("ended: %s\n", seen.c_str());
  if (operations >= 4000) {
    EXPECT_EQ(ends.size(), 10U) << "not every way to end was tried: " << seen;
  }
}

// Threads that submit and cancel as they like while the engine runs freely: for the thread sanitizer.
TEST_P(SchedulerPropertyTest, ManyThreads) {
  constexpr int kThreads = 4;
  const World& world = GetParam();
  const std::uint64_t seed = FromEnvironment("COMOE_TEST_SEED", 20);
  FakeEngine engine(EngineOptions(world));
  engine.ForgetPlans();
  RecordingMetrics metrics;
  SchedulerOptions options;
  options.max_waiting_requests = 16;
  options.max_batch_tokens = world.max_batch_tokens;
  options.max_sequences = world.max_sequences;
  const std::unique_ptr<Scheduler> scheduler = MakeScheduler(engine, options, metrics);
  std::vector<std::vector<Submission>> by_thread(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Dice dice(seed * 100 + static_cast<std::uint64_t>(t));
      std::vector<Submission>& own = by_thread[static_cast<std::size_t>(t)];
      for (int i = 0; i < 150; ++i) {
        Submission submission;
        submission.request = RandomRequest(dice, absl::StrCat(t, "-", i), absl::InfinitePast());
        submission.request.deadline =
            dice.Chance(6) ? absl::Now() + absl::Microseconds(dice.Roll(2000)) : absl::InfiniteFuture();
        submission.request.time_limit =
            dice.Chance(6) ? absl::Microseconds(1 + dice.Roll(2000)) : absl::InfiniteDuration();
        submission.time_limit = absl::Now() + submission.request.time_limit;
        submission.observer = std::make_shared<RecordingObserver>();
        if (!scheduler->Submit(submission.request, submission.observer).ok()) {
          continue;
        }
        own.push_back(std::move(submission));
        if (dice.Chance(3)) {
          own.back().observer->WaitTokens(static_cast<std::size_t>(dice.Roll(3)));
          own.back().stopped =
              dice.Chance(2) && scheduler->Cancel(own.back().request.id, CancelReason::kStopMatched);
          scheduler->Cancel(own.back().request.id);
        } else if (dice.Chance(2)) {
          own.back().observer->WaitFinished();
        }
        EXPECT_LE(scheduler->load().used_blocks, scheduler->load().total_blocks);
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      engine.FailStep(20, absl::InternalError("a step that fails"));
      scheduler->Cancel(absl::StrCat(i % kThreads, "-", i * 7));
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
  Excuses excuses;
  excuses.failing_steps = true;
  excuses.drained = true;
  scheduler->Stop(absl::Now() + absl::Milliseconds(5));
  excuses.latest = absl::Now();
  std::vector<Submission> submissions;
  for (std::vector<Submission>& own : by_thread) {
    for (Submission& submission : own) {
      submission.cancelled = true;  // the last thread cancels anybody's
      submissions.push_back(std::move(submission));
    }
  }
  EXPECT_GT(submissions.size(), 20U);
  CheckAfterwards(submissions, engine, *scheduler, metrics, excuses);
}

INSTANTIATE_TEST_SUITE_P(Worlds, SchedulerPropertyTest, ::testing::ValuesIn(Worlds()),
                         [](const ::testing::TestParamInfo<World>& tested) { return tested.param.name; });

}  // namespace
}  // namespace comoe::batching
