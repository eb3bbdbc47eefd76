// The whole service over a loopback port, with a fake engine.
#include "server/server.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comoe/v1/admin.grpc.pb.h"
#include "comoe/v1/inference.grpc.pb.h"
#include "comoe/v1/model.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/engine_thread.h"
#include "server/health.h"
#include "tests/server/test_util.h"
#include "tests/support/recording_metrics.h"

namespace comoe::server {
namespace {

namespace health = ::grpc::health::v1;
using ::grpc::StatusCode;
using ::testing::HasSubstr;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() : engine_(EngineFor(*tokenizer_)) {
    config_.listen = "127.0.0.1:0";
    config_.metrics_listen = "";
    scheduler_ = batching::MakeScheduler(engine_, config_.scheduler, sink_);
    server_ = Server::Start(config_, sink_).value();
    channel_ = ::grpc::CreateChannel(server_->address(), ::grpc::InsecureChannelCredentials());
    inference_ = v1::InferenceService::NewStub(channel_);
  }
  ~ServerTest() override {
    engine_.Release();
    server_.reset();
    scheduler_->Stop(absl::Now());
  }

  absl::Status Serve() { return server_->Serve(BackendOf(engine_, *scheduler_, tokenizer_.get())); }
  static std::unique_ptr<::grpc::ClientContext> Context() {
    auto context = std::make_unique<::grpc::ClientContext>();
    context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    return context;
  }
  health::HealthCheckResponse::ServingStatus Health(const std::string& service) {
    const auto stub = health::Health::NewStub(channel_);
    health::HealthCheckRequest request;
    request.set_service(service);
    health::HealthCheckResponse response;
    const ::grpc::Status status = stub->Check(Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }
  static v1::GenerateRequest Request(std::uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text("Once upon a time");
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  ::grpc::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    return inference_->Generate(Context().get(), request, response);
  }

  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = LoadDemoTokenizer();
  testing::RecordingMetrics sink_;
  testing::FakeEngine engine_;
  ServerConfig config_;
  std::unique_ptr<batching::Scheduler> scheduler_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<::grpc::Channel> channel_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
};

TEST_F(ServerTest, NothingServesBeforeTheWarmUpHasAnswered) {
  EXPECT_EQ(Health(""), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Health(kInferenceServiceName), health::HealthCheckResponse::NOT_SERVING);
  v1::GenerateResponse response;
  EXPECT_EQ(Generate(Request(3), &response).error_code(), StatusCode::UNAVAILABLE);
  const auto models = v1::ModelService::NewStub(channel_);
  v1::GetModelResponse model;
  EXPECT_EQ(models->GetModel(Context().get(), {}, &model).error_code(), StatusCode::UNAVAILABLE);
  const auto admin = v1::AdminService::NewStub(channel_);
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(admin->GetServerInfo(Context().get(), {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_LOADING);

  engine_.Hold();  // the warm-up does not answer yet
  absl::Status served;
  std::thread loader([&] { served = Serve(); });
  ASSERT_TRUE(engine_.WaitHeld());
  EXPECT_EQ(Health(kInferenceServiceName), health::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Generate(Request(3), &response).error_code(), StatusCode::UNAVAILABLE);
  engine_.Release();
  loader.join();
  EXPECT_TRUE(served.ok()) << served;
  EXPECT_EQ(Health(""), health::HealthCheckResponse::SERVING);
  EXPECT_EQ(Health(kInferenceServiceName), health::HealthCheckResponse::SERVING);
  ASSERT_TRUE(Generate(Request(3), &response).ok());
  EXPECT_EQ(response.choices(0).token_ids_size(), 3);
  ASSERT_TRUE(admin->GetServerInfo(Context().get(), {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_SERVING);
  EXPECT_EQ(info.model(), "demo");
}

// Every call into gRPC asks whether it is on the engine thread, and ends the process if it is. Here are all
// kinds of calls whose tokens and ends that thread brings about.
TEST_F(ServerTest, TheEngineThreadMakesNoGrpcCall) {
  scheduler_->Stop(absl::Now());
  batching::SchedulerOptions options = config_.scheduler;
  options.max_sequences = 8;
  options.told = server_->GatherWakes();
  scheduler_ = batching::MakeScheduler(engine_, options, sink_);
  ASSERT_TRUE(Serve().ok());
  std::promise<bool> marked;
  scheduler_->ForgetPrefixes(/*force=*/true,
                             [&](const auto& /*blocks*/) { marked.set_value(EngineThread::IsCurrent()); });
  EXPECT_TRUE(marked.get_future().get()) << "the engine thread is not known, so nothing is checked";

  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(40);
  const auto read_stream = [&](bool to_its_end) {
    const auto context = Context();
    const auto reader = inference_->GenerateStream(context.get(), request);
    v1::GenerateStreamResponse message;
    EXPECT_TRUE(reader->Read(&message));
    if (!to_its_end) {
      context->TryCancel();
    }
    while (reader->Read(&message)) {
    }
    EXPECT_EQ(reader->Finish().ok(), to_its_end);
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(read_stream, true);
    clients.emplace_back([&] {
      v1::GenerateResponse response;
      EXPECT_TRUE(Generate(Request(40), &response).ok());
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  const auto admin = v1::AdminService::NewStub(channel_);
  v1::FlushCacheResponse flushed;
  EXPECT_TRUE(admin->FlushCache(Context().get(), {}, &flushed).ok());
  engine_.FailStep(0, absl::InternalError("no such kernel"));
  v1::GenerateResponse response;
  EXPECT_EQ(Generate(Request(40), &response).error_code(), StatusCode::INTERNAL);
  EXPECT_FALSE(EngineThread::IsCurrent());
}

TEST_F(ServerTest, AFailedWarmUpServesNothing) {
  engine_.FailStep(0, absl::InternalError("no such kernel"));
  const absl::Status status = Serve();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no such kernel"));
  EXPECT_EQ(Health(kInferenceServiceName), health::HealthCheckResponse::NOT_SERVING);
  v1::GenerateResponse response;
  EXPECT_EQ(Generate(Request(3), &response).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(ServerTest, APortIsNotShared) {
  ServerConfig second = config_;
  second.listen = server_->address();
  const absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(second, sink_);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(started.status().message()), HasSubstr(server_->address()));
}

TEST_F(ServerTest, StreamAndUnaryAgree) {
  ASSERT_TRUE(Serve().ok());
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(64);
  request.mutable_request()->mutable_sampling()->set_seed(11);
  const auto context = Context();
  const auto reader = inference_->GenerateStream(context.get(), request);
  v1::GenerateStreamResponse event;
  std::string text;
  int num_finished = 0;
  while (reader->Read(&event)) {
    text += event.delta().text();
    num_finished += event.has_finished() ? 1 : 0;
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(num_finished, 1);
  v1::GenerateResponse response;
  ASSERT_TRUE(Generate(request.request(), &response).ok());
  EXPECT_EQ(response.choices(0).text(), text);
}

TEST_F(ServerTest, AStreamUnderWayMayFinishWhileDrainingAndNewOnesAreRefused) {
  ASSERT_TRUE(Serve().ok());
  engine_.Hold();
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(5);
  const auto context = Context();
  const auto reader = inference_->GenerateStream(context.get(), request);
  ASSERT_TRUE(engine_.WaitHeld());
  server_->BeginDrain();
  EXPECT_EQ(Health(kInferenceServiceName), health::HealthCheckResponse::NOT_SERVING);
  v1::GenerateResponse response;
  EXPECT_EQ(Generate(Request(3), &response).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_FALSE(server_->WaitUntilIdle(absl::Now() + absl::Milliseconds(20)));
  engine_.Release();
  v1::GenerateStreamResponse event;
  while (reader->Read(&event)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(event.finished().finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServerTest, AShutdownEndsStreamsWithATerminalEvent) {
  ASSERT_TRUE(Serve().ok());
  engine_.Hold();
  engine_.Permit(4);
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(1000);
  const auto context = Context();
  const auto reader = inference_->GenerateStream(context.get(), request);
  v1::GenerateStreamResponse event;
  ASSERT_TRUE(reader->Read(&event));
  std::thread stopper([&] { server_->Shutdown(); });
  engine_.Permit(1000);
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNAVAILABLE);
  ASSERT_TRUE(event.has_finished());
  EXPECT_EQ(event.finished().finish_reason(), v1::FINISH_REASON_DRAINING);
  stopper.join();
}

TEST_F(ServerTest, AClientThatLeavesFreesItsRequest) {
  ASSERT_TRUE(Serve().ok());
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(4000);
  const auto context = Context();
  const auto reader = inference_->GenerateStream(context.get(), request);
  v1::GenerateStreamResponse event;
  ASSERT_TRUE(reader->Read(&event));
  context->TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return scheduler_->load().running == 0; }));
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(30)));
}

TEST_F(ServerTest, AnEngineThatHangsIsNotServingUntilItGoesOn) {
  config_.engine_stall_timeout = absl::Milliseconds(200);
  server_ = Server::Start(config_, sink_).value();
  channel_ = ::grpc::CreateChannel(server_->address(), ::grpc::InsecureChannelCredentials());
  inference_ = v1::InferenceService::NewStub(channel_);
  ASSERT_TRUE(Serve().ok());
  engine_.Hold();
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(5);
  const auto context = Context();
  const auto reader = inference_->GenerateStream(context.get(), request);
  ASSERT_TRUE(engine_.WaitHeld());
  const auto is = [this](health::HealthCheckResponse::ServingStatus status) {
    return Eventually([&] { return Health(kInferenceServiceName) == status && Health("") == status; });
  };
  EXPECT_TRUE(is(health::HealthCheckResponse::NOT_SERVING));
  v1::GenerateStreamResponse event;
  while (reader->Read(&event)) {
  }
  EXPECT_EQ(event.finished().finish_reason(), v1::FINISH_REASON_ERROR);
  const ::grpc::Status ended = reader->Finish();
  EXPECT_EQ(ended.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(ended.error_message(), HasSubstr("no progress"));
  v1::GenerateResponse response;
  EXPECT_EQ(Generate(Request(3), &response).error_code(), StatusCode::UNAVAILABLE)
      << "others are refused meanwhile";
  engine_.Release();
  EXPECT_TRUE(is(health::HealthCheckResponse::SERVING));
  EXPECT_TRUE(Generate(Request(3), &response).ok());
}

TEST_F(ServerTest, AnAdminListenerTakesTheAdminServiceWithIt) {
  config_.admin_listen = "127.0.0.1:0";
  absl::Duration drain = absl::ZeroDuration();
  config_.on_drain = [&drain](absl::Duration timeout) { drain = timeout; };
  server_ = Server::Start(config_, sink_).value();
  ASSERT_TRUE(Serve().ok());
  const auto data = ::grpc::CreateChannel(server_->address(), ::grpc::InsecureChannelCredentials());
  v1::GetServerInfoResponse info;
  EXPECT_EQ(v1::AdminService::NewStub(data)->GetServerInfo(Context().get(), {}, &info).error_code(),
            StatusCode::UNIMPLEMENTED);
  channel_ = ::grpc::CreateChannel(server_->admin_address(), ::grpc::InsecureChannelCredentials());
  EXPECT_EQ(Health(kInferenceServiceName), health::HealthCheckResponse::SERVING);
  const auto admin = v1::AdminService::NewStub(channel_);
  ASSERT_TRUE(admin->GetServerInfo(Context().get(), {}, &info).ok());
  EXPECT_EQ(info.state(), v1::SERVER_STATE_SERVING);
  v1::SetLogLevelRequest level;
  v1::SetLogLevelResponse previous;
  EXPECT_EQ(admin->SetLogLevel(Context().get(), level, &previous).error_code(), StatusCode::INVALID_ARGUMENT);
  level.set_level(v1::LOG_LEVEL_ERROR);
  ASSERT_TRUE(admin->SetLogLevel(Context().get(), level, &previous).ok());
  level.set_level(previous.previous());
  ASSERT_TRUE(admin->SetLogLevel(Context().get(), level, &previous).ok());
  EXPECT_EQ(previous.previous(), v1::LOG_LEVEL_ERROR);
  v1::DrainRequest request;
  v1::DrainResponse response;
  request.mutable_timeout()->set_seconds(-1);
  EXPECT_EQ(admin->Drain(Context().get(), request, &response).error_code(), StatusCode::INVALID_ARGUMENT);
  request.mutable_timeout()->set_seconds(7);
  ASSERT_TRUE(admin->Drain(Context().get(), request, &response).ok());
  EXPECT_EQ(drain, absl::Seconds(7));
}

TEST_F(ServerTest, EveryRpcIsCounted) {
  ASSERT_TRUE(Serve().ok());
  v1::GenerateResponse response;
  EXPECT_TRUE(Generate(Request(3), &response).ok());
  EXPECT_EQ(Generate(Request(0), &response).error_code(), StatusCode::INVALID_ARGUMENT);
  v1::TokenizeRequest tokenize;
  tokenize.set_text("hello world");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(inference_->Tokenize(Context().get(), tokenize, &tokens).ok());
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(inference_->Detokenize(Context().get(), detokenize, &text).ok());
  EXPECT_EQ(text.text(), "hello world");
  EXPECT_EQ(text.raw(), "hello world");
  v1::AbortRequest abort;
  abort.add_request_ids("nobody");
  v1::AbortResponse aborted;
  ASSERT_TRUE(inference_->Abort(Context().get(), abort, &aborted).ok());
  EXPECT_EQ(aborted.aborted(), 0U);
  const auto admin = v1::AdminService::NewStub(channel_);
  v1::FlushCacheResponse flushed;
  EXPECT_TRUE(admin->FlushCache(Context().get(), {}, &flushed).ok());
  v1::StartProfileResponse profile;
  const ::grpc::Status refused = admin->StartProfile(Context().get(), {}, &profile);
  EXPECT_EQ(refused.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("StartProfile"));
  double sum = 0;
  for (const std::string& series : sink_.Series()) {
    if (series.rfind("requests_total{", 0) == 0) {
      sum += sink_.Value(series);
    }
  }
  EXPECT_EQ(sum, 7);
}

TEST_F(ServerTest, LimitsOfTheLibraryHaveTheirCodes) {
  ASSERT_TRUE(Serve().ok());
  v1::GenerateResponse response;
  v1::GenerateRequest request = Request(1);
  request.set_text(std::string(std::size_t{10} << 20, 'a'));
  EXPECT_EQ(Generate(request, &response).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  request.set_text(std::string((std::size_t{4} << 20) + 1, 'a'));
  const ::grpc::Status status = Generate(request, &response);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("text has 4194305 bytes"));
  request.set_text("hello");
  EXPECT_TRUE(Generate(request, &response).ok());
}

}  // namespace
}  // namespace comoe::server
