#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/generation_fixture.h"

namespace comoe::server {
namespace {

TEST_F(GenerationTest, AStreamStartsGoesOnAndEndsOnce) {
  const v1::GenerateStreamRequest request = Request(40, "me");
  FakeStream stream;
  const auto generation = Start(request, stream);
  EXPECT_TRUE(stream.WaitEnd().ok());
  const std::vector<v1::GenerateStreamResponse> messages = stream.messages();
  const StreamContent content = Join(messages);
  EXPECT_EQ(content.num_started, 1);
  EXPECT_EQ(content.num_finished, 1);
  ASSERT_TRUE(messages.front().has_started());
  EXPECT_EQ(messages.front().started().request_id(), "me");
  EXPECT_EQ(messages.front().started().model(), "demo");
  EXPECT_EQ(messages.front().started().seed(), 7U);
  ASSERT_TRUE(messages.back().has_finished());
  const v1::GenerateStreamResponse::Finished& finished = messages.back().finished();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(finished.usage().completion_tokens(), 40U);
  EXPECT_EQ(finished.usage().total_tokens(), messages.front().started().prompt_tokens() + 40);
  EXPECT_FALSE(finished.has_timing());
  EXPECT_EQ(content.ids.size(), 40U);
  EXPECT_EQ(Requests("OK", "max_tokens"), 1);
  EXPECT_EQ(sink_.Observations("time_to_first_token_seconds").size(), 1U);
  EXPECT_EQ(sink_.Observations("inter_token_latency_seconds").size(), 39U);
  EXPECT_EQ(sink_.Observations("time_per_output_token_seconds").size(), 1U);
}

TEST_F(GenerationTest, UnaryAndStreamGiveTheSame) {
  const v1::GenerateStreamRequest request = Request(100);
  FakeStream stream;
  const auto streamed = Start(request, stream);
  ASSERT_TRUE(stream.WaitEnd().ok());
  FakeUnary unary;
  const auto whole = StartUnary(request, unary);
  ASSERT_TRUE(unary.WaitEnd().ok());
  const StreamContent content = Join(stream.messages());
  ASSERT_EQ(unary.response().choices_size(), 1);
  const v1::GenerateResponse::Choice& choice = unary.response().choices(0);
  EXPECT_EQ(choice.text(), content.text);
  EXPECT_EQ(std::vector<std::uint32_t>(choice.token_ids().begin(), choice.token_ids().end()), content.ids);
  EXPECT_EQ(choice.finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_EQ(unary.response().seed(), 7U);
  EXPECT_EQ(unary.response().usage().completion_tokens(), 100U);
  const std::vector<base::TokenId> ids(content.ids.begin(), content.ids.end());
  EXPECT_EQ(choice.text(), tokenizer_->Decode(ids, true).value());
}

TEST_F(GenerationTest, AStopTokenIsCountedAndNotShown) {
  FakeUnary first;
  v1::GenerateStreamRequest request = Request(10);
  const auto whole = StartUnary(request, first);
  ASSERT_TRUE(first.WaitEnd().ok());
  const std::uint32_t stop = first.response().choices(0).token_ids(4);

  request.mutable_request()->mutable_stopping()->add_stop_token_ids(stop);
  request.mutable_request()->mutable_output()->set_return_token_pieces(true);
  FakeUnary second;
  const auto stopped = StartUnary(request, second);
  ASSERT_TRUE(second.WaitEnd().ok());
  const v1::GenerateResponse::Choice& choice = second.response().choices(0);
  EXPECT_EQ(choice.finish_reason(), v1::FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(choice.stop_token_id(), stop);
  EXPECT_EQ(choice.token_ids_size(), static_cast<int>(second.response().usage().completion_tokens()));
  EXPECT_EQ(choice.token_pieces_size(), choice.token_ids_size());
  EXPECT_EQ(choice.token_ids(choice.token_ids_size() - 1), stop);
  const std::vector<base::TokenId> shown(choice.token_ids().begin(), choice.token_ids().end() - 1);
  EXPECT_EQ(choice.text(), tokenizer_->Decode(shown, true).value());
}

TEST_F(GenerationTest, TokensThatComeDuringAWriteGoInOneMessage) {
  const v1::GenerateStreamRequest request = Request(50);
  FakeStream stream;
  stream.Hold(true);
  const auto generation = Start(request, stream);
  ASSERT_TRUE(Eventually([&] { return stream.writing(); }));  // Started
  ASSERT_TRUE(Eventually([&] { return scheduler_->load().running == 0; }));
  stream.Hold(false);
  stream.Complete(true);
  EXPECT_TRUE(stream.WaitEnd().ok());
  const std::vector<v1::GenerateStreamResponse> messages = stream.messages();
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[1].delta().token_ids_size(), 50);
  EXPECT_EQ(messages[1].delta().usage().completion_tokens(), 50U);
}

TEST_F(GenerationTest, AReaderThatFallsBehindIsEnded) {
  limits_.max_stream_backlog_tokens = 20;
  const v1::GenerateStreamRequest request = Request(4000);
  FakeStream stream;
  stream.Hold(true);
  const auto generation = Start(request, stream);
  const absl::Status status = stream.WaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(stream.abandoned());
  EXPECT_EQ(Requests("ABORTED", "aborted"), 1);
  EXPECT_EQ(sink_.Value("stream_aborts_total{reason=\"slow_consumer\"}"), 1);
  EXPECT_TRUE(Eventually([&] { return scheduler_->load().running == 0; }));
}

TEST_F(GenerationTest, AReaderThatTakesNothingIsEnded) {
  limits_.stream_stall_timeout = absl::Milliseconds(50);
  const v1::GenerateStreamRequest request = Request(10);
  FakeStream stream;
  stream.Hold(true);
  const auto generation = Start(request, stream);
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(stream.abandoned());
}

TEST_F(GenerationTest, ACancelFreesTheRequestWhereverItIs) {
  engine_.Hold();
  const v1::GenerateStreamRequest running = Request(1000, "running");
  const v1::GenerateStreamRequest queued = Request(1000, "queued");
  FakeStream first;
  FakeStream second;
  const auto a = Start(running, first);
  ASSERT_TRUE(engine_.WaitHeld());
  const auto b = Start(queued, second);
  ASSERT_TRUE(Eventually([&] { return scheduler_->load().waiting == 1; }));
  b->Cancel();
  EXPECT_EQ(second.WaitEnd().code(), absl::StatusCode::kCancelled);
  a->Cancel();
  a->Cancel();
  EXPECT_EQ(first.WaitEnd().code(), absl::StatusCode::kCancelled);
  engine_.Release();
  EXPECT_TRUE(Eventually([&] {
    const batching::LoadSnapshot load = scheduler_->load();
    return load.running == 0 && load.waiting == 0 && load.used_blocks == 0;
  }));
  EXPECT_EQ(Requests("CANCELLED", "aborted"), 2);
  EXPECT_EQ(sink_.Value("stream_aborts_total{reason=\"client_cancel\"}"), 2);
}

TEST_F(GenerationTest, ACancelAtAnyMomentEndsOnce) {
  for (int i = 0; i < 200; ++i) {
    const v1::GenerateStreamRequest request = Request(30);
    FakeStream stream;
    const auto generation = Start(request, stream);
    std::thread canceller([&generation, i] {
      absl::SleepFor(absl::Microseconds(i * 10));
      generation->Cancel();
    });
    const absl::Status status = stream.WaitEnd();
    canceller.join();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
  }
  EXPECT_TRUE(Eventually([&] { return scheduler_->load().running + scheduler_->load().waiting == 0; }));
}

TEST_F(GenerationTest, ADeadlineIsToldFromACancel) {
  engine_.Hold();
  const v1::GenerateStreamRequest request = Request(1000);
  FakeStream stream;
  const absl::Time deadline = absl::Now() + absl::Seconds(2);
  const auto generation = Start(request, stream, deadline);
  ASSERT_TRUE(engine_.WaitHeld());
  ASSERT_TRUE(Eventually([&] { return absl::Now() > deadline; }));
  generation->Cancel();  // gRPC reports a passed deadline as it reports a cancel
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Requests("DEADLINE_EXCEEDED", "deadline"), 1);
  EXPECT_EQ(sink_.Value("stream_aborts_total{reason=\"deadline\"}"), 1);
}

TEST_F(GenerationTest, AnAbortInTheSchedulerIsToldWithATerminalEvent) {
  engine_.Hold();
  const v1::GenerateStreamRequest request = Request(1000, "x");
  FakeStream stream;
  const auto generation = Start(request, stream);
  ASSERT_TRUE(engine_.WaitHeld());
  EXPECT_TRUE(scheduler_->Cancel("x"));
  engine_.Release();
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(stream.messages().back().has_finished());
  EXPECT_EQ(stream.messages().back().finished().finish_reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_FALSE(scheduler_->Cancel("x"));
  EXPECT_EQ(sink_.Value("stream_aborts_total{reason=\"abort\"}"), 1);
}

TEST_F(GenerationTest, ADrainEndsWithATerminalEvent) {
  engine_.Hold();
  const v1::GenerateStreamRequest running = Request(1000, "running");
  const v1::GenerateStreamRequest queued = Request(1000, "queued");
  FakeStream first;
  FakeStream second;
  const auto a = Start(running, first);
  ASSERT_TRUE(engine_.WaitHeld());
  const auto b = Start(queued, second);
  ASSERT_TRUE(Eventually([&] { return scheduler_->load().waiting == 1; }));
  scheduler_->BeginDrain();
  std::atomic<bool> stopped{false};
  std::thread stopper([&] {
    scheduler_->Stop(absl::Now());
    stopped = true;
  });
  EXPECT_TRUE(Eventually([&] {  // a step under way is waited for
    engine_.Permit(1);
    return stopped.load();
  }));
  stopper.join();
  for (FakeStream* stream : {&first, &second}) {
    EXPECT_EQ(stream->WaitEnd().code(), absl::StatusCode::kUnavailable);
    ASSERT_TRUE(stream->messages().back().has_finished());
    EXPECT_EQ(stream->messages().back().finished().finish_reason(), v1::FINISH_REASON_DRAINING);
  }
}

TEST_F(GenerationTest, AFailedStepIsAnErrorAndTheNextRequestIsServed) {
  engine_.FailStep(3, absl::InternalError("the device failed"));
  const v1::GenerateStreamRequest request = Request(20);
  FakeStream stream;
  const auto generation = Start(request, stream);
  const absl::Status status = stream.WaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the device failed"));
  ASSERT_TRUE(stream.messages().back().has_finished());
  EXPECT_EQ(stream.messages().back().finished().finish_reason(), v1::FINISH_REASON_ERROR);
  EXPECT_THAT(stream.messages().back().finished().message(), HasSubstr("the device failed"));
  FakeStream next;
  const auto second = Start(request, next);
  EXPECT_TRUE(next.WaitEnd().ok());
}

TEST_F(GenerationTest, ARefusalHasNoMessages) {
  v1::GenerateStreamRequest request = Request(20);
  request.mutable_request()->mutable_sampling()->set_top_p(7);
  FakeStream stream;
  const auto generation = Start(request, stream);
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(stream.messages().empty());
  EXPECT_EQ(Requests("INVALID_ARGUMENT", "none"), 1);
  EXPECT_EQ(sink_.Value("request_rejections_total{reason=\"invalid\"}"), 1);
}

TEST_F(GenerationTest, ADuplicateIdIsRefusedAndLeavesTheFirstAlone) {
  engine_.Hold();
  const v1::GenerateStreamRequest request = Request(5, "same");
  FakeStream first;
  const auto a = Start(request, first);
  ASSERT_TRUE(engine_.WaitHeld());
  FakeStream second;
  const auto b = Start(request, second);
  EXPECT_EQ(second.WaitEnd().code(), absl::StatusCode::kAlreadyExists);
  b->Cancel();  // must not reach the first
  engine_.Release();
  EXPECT_TRUE(first.WaitEnd().ok());
  EXPECT_EQ(sink_.Value("request_rejections_total{reason=\"duplicate_id\"}"), 1);
}

TEST_F(GenerationTest, APromptThatCannotFitIsTooLong) {
  v1::GenerateStreamRequest request = Request(5);
  request.mutable_request()->mutable_tokens()->mutable_ids()->Resize(5000, 1);
  FakeStream stream;
  const auto generation = Start(request, stream);
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kInvalidArgument);
  std::string text;
  for (int i = 0; i < 5000; ++i) {
    text += "word ";
  }
  request.mutable_request()->set_text(text);
  FakeStream other;
  const auto second = Start(request, other);
  EXPECT_EQ(other.WaitEnd().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sink_.Value("request_rejections_total{reason=\"too_long\"}"), 1);
}

TEST_F(GenerationTest, WhileDrainingNewRequestsAreRefused) {
  state_.SetPhase(Phase::kDraining);
  const v1::GenerateStreamRequest request = Request(5);
  FakeStream stream;
  const auto generation = Start(request, stream);
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(sink_.Value("request_rejections_total{reason=\"draining\"}"), 1);
}

TEST_F(GenerationTest, AFullPoolRefuses) {
  WorkerPool none(1, "none", {0, 0});
  const GenerationServices services = {state_,  none,      output_,  metrics_,
                                       limits_, registry_, backlog_, gathers_wakes_};
  const v1::GenerateStreamRequest request = Request(5);
  FakeStream stream;
  const auto generation =
      std::make_shared<StreamGeneration>(request, stream, absl::InfiniteFuture(), services);
  stream.generation_ = generation.get();
  generation->Start();
  EXPECT_EQ(stream.WaitEnd().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace comoe::server
