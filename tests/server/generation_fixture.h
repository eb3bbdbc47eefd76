// Generations over a fake engine, with transports that remember.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/log.h"
#include "engine/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/stream_generation.h"
#include "server/unary_generation.h"
#include "tests/server/test_util.h"
#include "tests/support/recording_metrics.h"

namespace comoe::server {

using ::testing::HasSubstr;

// A stream's other end. Writes complete at once, or when the test says so.
class FakeStream final : public StreamTransport {
 public:
  void Write(const v1::GenerateStreamResponse& message) override {
    Generation* generation = nullptr;
    {
      base::MutexLock lock(&mutex_);
      EXPECT_FALSE(writing_) << "two writes at once";
      EXPECT_FALSE(status_.has_value()) << "a write after the end";
      messages_.push_back(message);
      writing_ = true;
      generation = held_ ? nullptr : generation_;
    }
    if (generation != nullptr) {
      Complete(true);
    }
  }
  void WriteAndFinish(const v1::GenerateStreamResponse& message, const absl::Status& status) override {
    {
      base::MutexLock lock(&mutex_);
      messages_.push_back(message);
    }
    Finish(status);
  }
  void Finish(const absl::Status& status) override {
    Generation* done = nullptr;
    {
      base::MutexLock lock(&mutex_);
      EXPECT_FALSE(writing_) << "finished with a write in flight";
      EXPECT_FALSE(finished_) << "finished twice";
      finished_ = true;
      done = end_held_ ? nullptr : generation_;
    }
    if (done != nullptr) {
      done->TransportDone();
    }
    base::MutexLock lock(&mutex_);  // last: the test may go on, and this go
    status_ = status;
  }
  // As gRPC does: the call is cancelled, which fails the write, or ends an end that was not read.
  void Abandon() override {
    bool ended = false;
    {
      base::MutexLock lock(&mutex_);
      abandoned_ = true;
      ended = finished_;
    }
    generation_->Cancel();
    Complete(false);
    if (ended) {
      generation_->TransportDone();
    }
  }
  std::string peer() const override { return "ipv4:127.0.0.1:1"; }

  void Complete(bool ok) {
    {
      base::MutexLock lock(&mutex_);
      if (!std::exchange(writing_, false)) {
        return;
      }
    }
    generation_->WriteDone(ok);
  }
  void Hold(bool held) {
    base::MutexLock lock(&mutex_);
    held_ = held;
  }
  // The end is not read.
  void HoldEnd() {
    base::MutexLock lock(&mutex_);
    end_held_ = true;
  }
  bool writing() {
    base::MutexLock lock(&mutex_);
    return writing_;
  }
  bool abandoned() {
    base::MutexLock lock(&mutex_);
    return abandoned_;
  }
  std::vector<v1::GenerateStreamResponse> messages() {
    base::MutexLock lock(&mutex_);
    return messages_;
  }
  absl::Status WaitEnd() {
    EXPECT_TRUE(Eventually([this] {
      base::MutexLock lock(&mutex_);
      return status_.has_value();
    }));
    base::MutexLock lock(&mutex_);
    return status_.value_or(absl::UnknownError("it did not end"));
  }

  Generation* generation_ = nullptr;  // set before Start

 private:
  base::Mutex mutex_;
  std::vector<v1::GenerateStreamResponse> messages_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_held_ ABSL_GUARDED_BY(mutex_) = false;
};

class FakeUnary final : public UnaryTransport {
 public:
  v1::GenerateResponse& response() override { return response_; }
  void Finish(const absl::Status& status) override {
    if (!end_held_) {
      generation_->TransportDone();
    }
    base::MutexLock lock(&mutex_);
    EXPECT_FALSE(status_.has_value()) << "finished twice";
    status_ = status;
  }
  void Abandon() override {
    {
      base::MutexLock lock(&mutex_);
      abandoned_ = true;
    }
    generation_->TransportDone();
  }
  std::string peer() const override { return "ipv4:127.0.0.1:1"; }
  bool abandoned() {
    base::MutexLock lock(&mutex_);
    return abandoned_;
  }

  Generation* generation_ = nullptr;  // set before Start
  bool end_held_ = false;             // set before Start: the answer is not read

  absl::Status WaitEnd() {
    EXPECT_TRUE(Eventually([this] {
      base::MutexLock lock(&mutex_);
      return status_.has_value();
    }));
    base::MutexLock lock(&mutex_);
    return status_.value_or(absl::UnknownError("it did not end"));
  }

 private:
  base::Mutex mutex_;
  v1::GenerateResponse response_;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

class GenerationTest : public ::testing::Test {
 protected:
  explicit GenerationTest(const batching::SchedulerOptions& options = {}) : engine_(EngineFor(*tokenizer_)) {
    base::SetLogLevel(base::LogLevel::kError);  // a line a request would bury the rest
    scheduler_ = batching::MakeScheduler(engine_, options, sink_);
    state_.SetBackend(BackendOf(engine_, *scheduler_, tokenizer_.get()));
    state_.SetPhase(Phase::kServing);
  }
  ~GenerationTest() override {
    engine_.Release();
    scheduler_->Stop(absl::Now());
    EXPECT_THAT(engine_.violations(), ::testing::IsEmpty());
  }

  static v1::GenerateStreamRequest Request(std::uint32_t max_tokens, const std::string& id = "") {
    v1::GenerateStreamRequest request;
    request.mutable_request()->set_request_id(id);
    request.mutable_request()->set_text("Call me Ishmael");
    request.mutable_request()->mutable_sampling()->set_seed(7);
    request.mutable_request()->mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  std::shared_ptr<StreamGeneration> Start(const v1::GenerateStreamRequest& request, FakeStream& stream,
                                          absl::Time deadline = absl::InfiniteFuture()) {
    auto generation = std::make_shared<StreamGeneration>(request, stream, deadline, services_);
    stream.generation_ = generation.get();
    generation->Start();
    return generation;
  }
  std::shared_ptr<UnaryGeneration> StartUnary(const v1::GenerateStreamRequest& request, FakeUnary& unary,
                                              absl::Time deadline = absl::InfiniteFuture()) {
    auto generation = std::make_shared<UnaryGeneration>(request.request(), unary, deadline, services_);
    unary.generation_ = generation.get();
    generation->Start();
    return generation;
  }
  double Requests(const std::string& code, const std::string& reason,
                  const std::string& method = "GenerateStream") {
    return sink_.Value("requests_total{code=\"" + code + "\",finish_reason=\"" + reason + "\",method=\"" +
                       method + "\"}");
  }

  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = LoadDemoTokenizer();
  testing::RecordingMetrics sink_;
  testing::FakeEngine engine_;
  std::unique_ptr<batching::Scheduler> scheduler_;
  ServingState state_;
  Limits limits_;
  RequestMetrics metrics_{sink_};
  WorkerPool workers_{2, "tokenizer", {64, std::size_t{64} << 20}};
  OutputThreads output_{1, "output"};
  RequestRegistry registry_;
  StreamBacklog backlog_{limits_, output_, metrics_};
  const std::atomic<bool> gathers_wakes_{false};
  const GenerationServices services_{state_,  workers_,  output_,  metrics_,
                                     limits_, registry_, backlog_, gathers_wakes_};
};

struct StreamContent {
  std::string text;
  std::vector<std::uint32_t> ids;
  int num_started = 0;
  int num_finished = 0;
};

inline StreamContent Join(const std::vector<v1::GenerateStreamResponse>& messages) {
  StreamContent content;
  for (const v1::GenerateStreamResponse& message : messages) {
    content.num_started += message.has_started() ? 1 : 0;
    content.num_finished += message.has_finished() ? 1 : 0;
    EXPECT_TRUE(tokenizer::IsValidUtf8(message.delta().text()));
    content.text += message.delta().text();
    content.ids.insert(content.ids.end(), message.delta().token_ids().begin(),
                       message.delta().token_ids().end());
  }
  return content;
}

}  // namespace comoe::server
