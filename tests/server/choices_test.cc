// What a request may ask for beside its tokens: several choices, stop strings, log-probabilities, gathering.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/server/generation_fixture.h"

namespace comoe::server {
namespace {

struct ByIndex {
  std::map<std::uint32_t, std::vector<std::uint32_t>> ids;
  std::map<std::uint32_t, std::string> text;
  std::map<std::uint32_t, v1::GenerateStreamResponse::Finished> finished;
  int num_started = 0;
};

ByIndex Split(const std::vector<v1::GenerateStreamResponse>& messages) {
  ByIndex split;
  for (const v1::GenerateStreamResponse& message : messages) {
    split.num_started += message.has_started() ? 1 : 0;
    if (message.has_delta()) {
      const std::uint32_t index = message.delta().index();
      EXPECT_EQ(split.finished.count(index), 0U) << "a Delta after its Finished";
      split.text[index] += message.delta().text();
      split.ids[index].insert(split.ids[index].end(), message.delta().token_ids().begin(),
                              message.delta().token_ids().end());
    }
    if (message.has_finished()) {
      EXPECT_TRUE(split.finished.emplace(message.finished().index(), message.finished()).second)
          << "finished twice";
    }
  }
  return split;
}

class ChoicesTest : public GenerationTest {
 protected:
  // The one choice's completion.
  v1::GenerateResponse::Choice Complete(const v1::GenerateStreamRequest& request) {
    FakeUnary unary;
    const auto generation = StartUnary(request, unary);
    const absl::Status status = unary.WaitEnd();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(unary.response().choices_size(), 1);
    return unary.response().choices(0);
  }
  std::vector<base::TokenId> Prompt() { return tokenizer_->Encode("Call me Ishmael", true).value(); }
};

TEST_F(ChoicesTest, EachChoiceIsTheCompletionOfItsSeed) {
  v1::GenerateStreamRequest request = Request(30, "several");
  request.mutable_request()->mutable_sampling()->set_n(3);
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(stream.WaitEnd().ok());
  const ByIndex split = Split(stream.messages());
  EXPECT_EQ(split.num_started, 1);
  ASSERT_EQ(split.finished.size(), 3U);
  FakeUnary unary;
  const auto whole = StartUnary(request, unary);
  ASSERT_TRUE(unary.WaitEnd().ok());
  ASSERT_EQ(unary.response().choices_size(), 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    v1::GenerateStreamRequest alone = Request(30);
    alone.mutable_request()->mutable_sampling()->set_seed(7 + i);
    const v1::GenerateResponse::Choice expected = Complete(alone);
    EXPECT_EQ(split.text.at(i), expected.text());
    EXPECT_EQ(split.ids.at(i),
              std::vector<std::uint32_t>(expected.token_ids().begin(), expected.token_ids().end()));
    EXPECT_EQ(split.finished.at(i).finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
    EXPECT_EQ(unary.response().choices(static_cast<int>(i)).text(), expected.text());
    EXPECT_EQ(unary.response().choices(static_cast<int>(i)).index(), i);
  }
  const auto prompt_tokens = static_cast<std::uint32_t>(Prompt().size());
  const v1::Usage usage = stream.messages().back().finished().usage();
  EXPECT_EQ(usage.prompt_tokens(), prompt_tokens) << "the prompt once";
  EXPECT_EQ(usage.completion_tokens(), 90U);
  EXPECT_EQ(unary.response().usage().total_tokens(), prompt_tokens + 90);
  EXPECT_EQ(unary.response().seed(), 7U);
}

TEST_F(ChoicesTest, SeveralChoicesAreOneRequestInTheMetrics) {
  v1::GenerateStreamRequest request = Request(10);
  request.mutable_request()->mutable_sampling()->set_n(8);
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(stream.WaitEnd().ok());
  EXPECT_EQ(Requests("OK", "max_tokens"), 1);
  EXPECT_EQ(sink_.Observations("time_to_first_token_seconds").size(), 1U);
  EXPECT_EQ(sink_.Observations("inter_token_latency_seconds").size(), 8U * 9);
}

TEST_F(ChoicesTest, AnAbortEndsAllOfThem) {
  engine_.Hold();
  v1::GenerateStreamRequest request = Request(1000, "several");
  request.mutable_request()->mutable_sampling()->set_n(3);
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(engine_.WaitHeld());
  ASSERT_TRUE(Eventually([&] { return scheduler_->load().waiting == 2; }));
  const std::shared_ptr<Generation> found = registry_.Find("several");
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->Abort());
  engine_.Release();
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kCancelled);
  const ByIndex split = Split(stream.messages());
  ASSERT_EQ(split.finished.size(), 3U);
  for (const auto& [index, finished] : split.finished) {
    EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_ABORTED);
  }
  EXPECT_FALSE(found->Abort()) << "it has ended";
  EXPECT_EQ(registry_.Find("several"), nullptr);
}

TEST_F(ChoicesTest, AnErrorOfOneEndsAll) {
  engine_.Hold();
  engine_.Permit(4);
  engine_.FailStep(3, absl::InternalError("the device failed"));
  v1::GenerateStreamRequest request = Request(20);
  request.mutable_request()->mutable_sampling()->set_n(2);
  FakeStream stream;
  const auto generation = Start(request, stream);
  // The second one runs now, and does not get far.
  ASSERT_TRUE(Eventually([&] { return Split(stream.messages()).finished.count(0) == 1; }));
  engine_.Release();
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kInternal);
  const ByIndex split = Split(stream.messages());
  ASSERT_EQ(split.finished.size(), 2U);
  for (const auto& [index, finished] : split.finished) {
    EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_ERROR);
    EXPECT_THAT(finished.message(), HasSubstr("the device failed"));
  }
  EXPECT_EQ(Requests("INTERNAL", "error"), 1);
}

TEST_F(ChoicesTest, AClientThatLeavesEndsAll) {
  engine_.Hold();
  v1::GenerateStreamRequest request = Request(1000);
  request.mutable_request()->mutable_sampling()->set_n(4);
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(engine_.WaitHeld());
  generation->Cancel();
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kCancelled);
  engine_.Release();
  EXPECT_TRUE(Eventually([&] { return scheduler_->load().running + scheduler_->load().waiting == 0; }));
}

batching::SchedulerOptions TwoMayWait() {
  batching::SchedulerOptions options;
  options.max_waiting_requests = 2;
  return options;
}

class SmallQueueTest : public GenerationTest {
 protected:
  SmallQueueTest() : GenerationTest(TwoMayWait()) {}
};

TEST_F(SmallQueueTest, AllAreQueuedOrNone) {
  engine_.Hold();
  const v1::GenerateStreamRequest running = Request(5);
  FakeStream first;
  const auto a = Start(running, first);
  ASSERT_TRUE(engine_.WaitHeld());
  v1::GenerateStreamRequest request = Request(5, "several");
  request.mutable_request()->mutable_sampling()->set_n(3);
  FakeStream second;
  const auto b = Start(request, second);
  EXPECT_EQ(second.WaitEnd().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(second.messages().empty());
  EXPECT_EQ(sink_.Value("request_rejections_total{reason=\"queue_full\"}"), 1);
  engine_.Release();
  EXPECT_TRUE(first.WaitEnd().ok());
  EXPECT_TRUE(Eventually([&] { return scheduler_->load().running + scheduler_->load().waiting == 0; }));
  request.mutable_request()->mutable_sampling()->set_n(2);  // the id is free again
  FakeStream third;
  const auto c = Start(request, third);
  EXPECT_TRUE(third.WaitEnd().ok());
}

TEST_F(ChoicesTest, AStopStringEndsTheTextAndTheRequest) {
  const v1::GenerateResponse::Choice whole = Complete(Request(100));
  // From the middle of the text, between characters.
  std::size_t begin = whole.text().size() / 2;
  while (tokenizer::IsUtf8Continuation(whole.text()[begin])) {
    ++begin;
  }
  std::size_t end = begin + 6;
  while (tokenizer::IsUtf8Continuation(whole.text()[end])) {
    ++end;
  }
  const std::string stop = whole.text().substr(begin, end - begin);
  const std::size_t at = whole.text().find(stop);
  for (const bool include : {false, true}) {
    v1::GenerateStreamRequest request = Request(100);
    request.mutable_request()->mutable_stopping()->add_stop("never there");
    request.mutable_request()->mutable_stopping()->add_stop(stop);
    request.mutable_request()->mutable_stopping()->set_include_stop_in_output(include);
    const v1::GenerateResponse::Choice stopped = Complete(request);
    EXPECT_EQ(stopped.finish_reason(), v1::FINISH_REASON_STOP_STRING);
    EXPECT_EQ(stopped.stop_string(), stop);
    EXPECT_EQ(stopped.text(), whole.text().substr(0, include ? at + stop.size() : at));
    EXPECT_LT(stopped.token_ids_size(), 100);
    FakeStream stream;
    const auto generation = Start(request, stream);
    EXPECT_TRUE(stream.WaitEnd().ok());
    const ByIndex split = Split(stream.messages());
    EXPECT_EQ(split.text.at(0), stopped.text());
    EXPECT_EQ(split.ids.at(0).size(), static_cast<std::size_t>(stopped.token_ids_size()));
    EXPECT_EQ(split.finished.at(0).stop_string(), stop);
    EXPECT_EQ(split.finished.at(0).usage().completion_tokens(), split.ids.at(0).size())
        << "what the scheduler made behind it is not the client's";
  }
  EXPECT_EQ(Requests("OK", "stop_string", "Generate"), 2);
}

TEST_F(ChoicesTest, LogprobsComeWithTheTokens) {
  v1::GenerateStreamRequest request = Request(5);
  request.mutable_request()->mutable_output()->set_logprobs(3);
  const v1::GenerateResponse::Choice choice = Complete(request);
  ASSERT_EQ(choice.logprobs_size(), 5);
  std::vector<base::TokenId> history = Prompt();
  for (int i = 0; i < 5; ++i) {
    const auto id = static_cast<base::TokenId>(choice.token_ids(i));
    const api::LogprobRow row = testing::FakeEngine::Logprobs(history, id, 3);
    EXPECT_EQ(choice.logprobs(i).logprob(), row.logprob);
    ASSERT_EQ(choice.logprobs(i).top_size(), 3);
    EXPECT_EQ(choice.logprobs(i).top(2).token_id(), static_cast<std::uint32_t>(row.top[2].id));
    EXPECT_EQ(choice.logprobs(i).top(2).logprob(), row.top[2].logprob);
    history.push_back(id);
  }
  EXPECT_EQ(Complete(Request(5)).logprobs_size(), 0);
}

TEST_F(ChoicesTest, StartedWaitsForThePromptsLogprobs) {
  v1::GenerateStreamRequest request = Request(3);
  request.mutable_request()->mutable_output()->set_prompt_logprobs(2);
  request.mutable_request()->mutable_sampling()->set_n(2);
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(stream.WaitEnd().ok());
  const std::vector<base::TokenId> prompt = Prompt();
  const v1::GenerateStreamResponse::Started started = stream.messages().front().started();
  ASSERT_EQ(started.prompt_logprobs_size(), static_cast<int>(prompt.size()));
  EXPECT_FALSE(started.prompt_logprobs(0).has_logprob());
  for (int i = 1; i < started.prompt_logprobs_size(); ++i) {
    EXPECT_EQ(started.prompt_logprobs(i).token_id(), static_cast<std::uint32_t>(prompt[i]));
    EXPECT_TRUE(started.prompt_logprobs(i).has_logprob());
    EXPECT_EQ(started.prompt_logprobs(i).top_size(), 2);
  }
  FakeUnary unary;
  const auto whole = StartUnary(request, unary);
  ASSERT_TRUE(unary.WaitEnd().ok());
  EXPECT_EQ(unary.response().prompt_logprobs_size(), started.prompt_logprobs_size());
}

TEST_F(ChoicesTest, APrefillOnlyGivesNoToken) {
  v1::GenerateStreamRequest request = Request(3);
  request.mutable_request()->mutable_output()->set_prompt_logprobs(1);
  request.mutable_request()->mutable_output()->set_prefill_only(true);
  request.mutable_request()->mutable_output()->set_echo_prompt(true);
  FakeUnary unary;
  const auto generation = StartUnary(request, unary);
  ASSERT_TRUE(unary.WaitEnd().ok());
  EXPECT_EQ(unary.response().choices(0).token_ids_size(), 0);
  EXPECT_EQ(unary.response().choices(0).text(), "Call me Ishmael");
  EXPECT_EQ(unary.response().choices(0).finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(unary.response().prompt_logprobs_size(), static_cast<int>(Prompt().size()));
  EXPECT_EQ(unary.response().usage().completion_tokens(), 0U);
}

TEST_F(ChoicesTest, AnEchoIsPromptAndCompletionDecodedTogether) {
  v1::GenerateStreamRequest request = Request(20);
  request.mutable_request()->mutable_output()->set_echo_prompt(true);
  request.mutable_request()->mutable_output()->set_truncate_prompt_tokens(3);
  request.mutable_request()->mutable_stopping()->add_stop("Ishmael");  // not looked for in the prompt
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(stream.WaitEnd().ok());
  const ByIndex split = Split(stream.messages());
  std::vector<base::TokenId> ids = Prompt();
  ids.erase(ids.begin(), ids.end() - 3);
  EXPECT_EQ(stream.messages().front().started().prompt_tokens(), 3U);
  ids.insert(ids.end(), split.ids.at(0).begin(), split.ids.at(0).end());
  EXPECT_EQ(split.text.at(0), tokenizer_->Decode(ids, true).value());
  EXPECT_EQ(split.ids.at(0).size(), 20U) << "the prompt's ids are not echoed";
}

TEST_F(ChoicesTest, ATimeLimitGivesWhatThereIs) {
  engine_.Hold();
  engine_.Permit(4);
  v1::GenerateStreamRequest request = Request(4000);
  request.mutable_request()->mutable_stopping()->mutable_time_limit()->set_nanos(300000000);
  FakeStream stream;
  const auto generation = Start(request, stream);
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(Eventually([&] { return absl::Now() - begin > absl::Milliseconds(310); }));
  engine_.Release();
  EXPECT_TRUE(stream.WaitEnd().ok());
  const ByIndex split = Split(stream.messages());
  EXPECT_EQ(split.finished.at(0).finish_reason(), v1::FINISH_REASON_TIME_LIMIT);
  EXPECT_GE(split.ids.at(0).size(), 4U);
  EXPECT_LT(split.ids.at(0).size(), 10U);
  EXPECT_EQ(Requests("OK", "time_limit"), 1);
}

TEST_F(ChoicesTest, ADeltaGathersTokens) {
  v1::GenerateStreamRequest request = Request(50);
  request.mutable_stream()->set_min_chunk_tokens(20);
  request.mutable_request()->mutable_sampling()->set_n(2);
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(stream.WaitEnd().ok());
  std::map<std::uint32_t, std::vector<int>> sizes;
  for (const v1::GenerateStreamResponse& message : stream.messages()) {
    if (message.has_delta()) {
      sizes[message.delta().index()].push_back(message.delta().token_ids_size());
    }
  }
  for (const auto& [index, of_choice] : sizes) {
    for (std::size_t i = 0; i + 1 < of_choice.size(); ++i) {
      EXPECT_GE(of_choice[i], 20);
    }
  }
  EXPECT_EQ(Split(stream.messages()).ids.at(1).size(), 50U);
}

TEST_F(ChoicesTest, ADeltaWaitsNoLongerThanItsDelay) {
  engine_.Hold();
  v1::GenerateStreamRequest request = Request(50);
  request.mutable_stream()->set_min_chunk_tokens(40);
  request.mutable_stream()->mutable_max_chunk_delay()->set_nanos(20000000);
  // It has a timer of its own, so it does not wait for the next tick. A busy machine may be late once.
  bool in_time = false;
  for (int i = 0; i < 20 && !in_time; ++i) {
    engine_.Permit(3);
    const absl::Time begin = absl::Now();
    FakeStream stream;
    const auto generation = Start(request, stream);
    // The engine stands still: only time can bring it.
    ASSERT_TRUE(Eventually([&] { return stream.messages().size() == 2; }));
    EXPECT_GE(absl::Now() - begin, absl::Milliseconds(20));
    in_time = absl::Now() - begin < OutputThreads::kTick;
    EXPECT_EQ(stream.messages()[1].delta().token_ids_size(), 3);
    engine_.Permit(47);
    EXPECT_TRUE(stream.WaitEnd().ok());
    EXPECT_EQ(Split(stream.messages()).ids.at(0).size(), 50U);
  }
  EXPECT_TRUE(in_time);
}

TEST_F(ChoicesTest, AnAnswerThatIsTooLargeIsRefusedByUs) {
  limits_.max_answer_bytes = 200;
  const v1::GenerateStreamRequest request = Request(200);
  FakeUnary unary;
  const auto generation = StartUnary(request, unary);
  const absl::Status status = unary.WaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("200 at most"));
  EXPECT_EQ(unary.response().choices_size(), 0);
  EXPECT_EQ(Requests("RESOURCE_EXHAUSTED", "error", "Generate"), 1);
  EXPECT_TRUE(Eventually([&] { return scheduler_->load().running == 0; }));
  v1::GenerateStreamRequest scored = Request(2);
  scored.mutable_request()->set_text(std::string(100, 'x') + " and more of it");
  scored.mutable_request()->mutable_output()->set_prompt_logprobs(20);
  FakeStream stream;
  const auto streamed = Start(scored, stream);
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(stream.messages().empty());
}

}  // namespace
}  // namespace comoe::server
