// What only shows on the wire: details and trailers of errors, answers that are too large, and clients that
// never open their HTTP/2 window.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "comoe/v1/inference.grpc.pb.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/server/test_util.h"
#include "tests/support/recording_metrics.h"

namespace comoe::server {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

class WireTest : public ::testing::Test {
 protected:
  WireTest() : engine_(EngineFor(*tokenizer_)) {
    config_.listen = "127.0.0.1:0";
    config_.metrics_listen = "";
    config_.limits.stream_stall_timeout = absl::Milliseconds(300);
    config_.limits.max_answer_bytes = 64 << 10;
    scheduler_ = batching::MakeScheduler(engine_, config_.scheduler, sink_);
    server_ = Server::Start(config_, sink_).value();
    channel_ = ::grpc::CreateChannel(server_->address(), ::grpc::InsecureChannelCredentials());
    inference_ = v1::InferenceService::NewStub(channel_);
  }
  ~WireTest() override {
    engine_.Release();
    server_.reset();
    scheduler_->Stop(absl::Now());
  }
  void Serve() { ASSERT_TRUE(server_->Serve(BackendOf(engine_, *scheduler_, tokenizer_.get())).ok()); }
  static std::unique_ptr<::grpc::ClientContext> Context() {
    auto context = std::make_unique<::grpc::ClientContext>();
    context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(30)));
    return context;
  }
  static v1::GenerateRequest Request(std::uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_text("Once upon a time");
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
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

template <typename Message>
bool FindDetail(const ::grpc::Status& status, Message* message) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  for (const google::protobuf::Any& any : details.details()) {
    if (any.UnpackTo(message)) {
      return true;
    }
  }
  return false;
}

TEST_F(WireTest, UnavailableSaysWhenToComeBack) {
  for (const bool stream : {false, true}) {
    const auto context = Context();
    ::grpc::Status status;
    if (stream) {
      v1::GenerateStreamRequest request;
      *request.mutable_request() = Request(3);
      status = inference_->GenerateStream(context.get(), request)->Finish();
    } else {
      v1::GenerateResponse response;
      status = inference_->Generate(context.get(), Request(3), &response);
    }
    ASSERT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
    google::rpc::RetryInfo retry;
    ASSERT_TRUE(FindDetail(status, &retry));
    EXPECT_EQ(retry.retry_delay().seconds(), 1);
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(FindDetail(status, &info));
    EXPECT_EQ(info.domain(), "comoe");
    const auto& trailers = context->GetServerTrailingMetadata();
    const auto pushback = trailers.find("grpc-retry-pushback-ms");
    ASSERT_NE(pushback, trailers.end());
    EXPECT_EQ(std::string(pushback->second.data(), pushback->second.size()), "1000");
  }
}

TEST_F(WireTest, AWrongFieldOfAStreamIsNamedFromItsOwnRequest) {
  Serve();
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(3);
  request.mutable_request()->mutable_sampling()->set_top_p(7);
  const auto context = Context();
  const ::grpc::Status status = inference_->GenerateStream(context.get(), request)->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("request.sampling.top_p is 7"));
  google::rpc::BadRequest bad;
  ASSERT_TRUE(FindDetail(status, &bad));
  EXPECT_EQ(bad.field_violations(0).field(), "request.sampling.top_p");
}

TEST_F(WireTest, AnAbortCountsARequestOnceHoweverManyChoicesItHas) {
  Serve();
  engine_.Hold();
  v1::GenerateStreamRequest request;
  *request.mutable_request() = Request(1000);
  request.mutable_request()->set_request_id("three");
  request.mutable_request()->mutable_sampling()->set_n(3);
  const auto context = Context();
  const auto reader = inference_->GenerateStream(context.get(), request);
  ASSERT_TRUE(engine_.WaitHeld());
  v1::AbortRequest abort;
  for (const std::string id : {"three", "warm-up", "nobody"}) {
    abort.add_request_ids(id);
  }
  v1::AbortResponse aborted;
  ASSERT_TRUE(inference_->Abort(Context().get(), abort, &aborted).ok());
  EXPECT_EQ(aborted.aborted(), 1U);
  engine_.Release();
  v1::GenerateStreamResponse event;
  int num_finished = 0;
  while (reader->Read(&event)) {
    num_finished += event.has_finished() ? 1 : 0;
  }
  EXPECT_EQ(num_finished, 3);
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  abort.mutable_request_ids(0)->append("#1");
  EXPECT_EQ(inference_->Abort(Context().get(), abort, &aborted).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(WireTest, AnswersThatAreTooLargeAreRefusedWithOurWords) {
  Serve();
  v1::TokenizeRequest tokenize;
  for (int i = 0; i < 10000;
       ++i) {  // more would take ThreadSanitizer minutes: it sees nothing of gRPC's locks
    tokenize.mutable_text()->append("a b ");
  }
  tokenize.set_return_offsets(true);
  v1::TokenizeResponse tokens;
  ::grpc::Status status = inference_->Tokenize(Context().get(), tokenize, &tokens);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("this server answers with 65536 at most"));
  google::rpc::RetryInfo retry;
  EXPECT_FALSE(FindDetail(status, &retry)) << "it would be as large again";
  EXPECT_EQ(
      sink_.Value("requests_total{code=\"RESOURCE_EXHAUSTED\",finish_reason=\"none\",method=\"Tokenize\"}"),
      1);
  base::TokenId longest = 0;
  for (base::TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
    longest = tokenizer_->TokenBytes(id).size() > tokenizer_->TokenBytes(longest).size() ? id : longest;
  }
  v1::DetokenizeRequest detokenize;
  detokenize.mutable_token_ids()->Resize(1 << 20, static_cast<std::uint32_t>(longest));
  v1::DetokenizeResponse text;
  status = inference_->Detokenize(Context().get(), detokenize, &text);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  detokenize.add_token_ids(0);
  status = inference_->Detokenize(Context().get(), detokenize, &text);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("token_ids has 1048577 ids"));
}

// An HTTP/2 client that opens no window at all: it never takes a byte of a message.
class ClosedWindow {
 public:
  ClosedWindow(const std::string& address, const std::string& method, const std::string& message) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    std::uint32_t port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    void* const address_of_to = &to;
    EXPECT_EQ(::connect(socket_, static_cast<sockaddr*>(address_of_to), sizeof to), 0);
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    bytes += Frame(4, 0, 0, std::string("\0\4\0\0\0\0", 6));  // SETTINGS: initial window 0
    std::string headers;
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{":method", "POST"},
                                                          {":scheme", "http"},
                                                          {":path", "/comoe.v1.InferenceService/" + method},
                                                          {":authority", "localhost"},
                                                          {"content-type", "application/grpc"},
                                                          {"te", "trailers"}}) {
      headers += std::string(1, '\0') + Literal(name) + Literal(value);
    }
    bytes += Frame(1, 4, 1, headers);  // HEADERS: END_HEADERS
    bytes += Frame(0, 1, 1, std::string(1, '\0') + Number(message.size(), 4) + message);  // DATA: END_STREAM
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  ~ClosedWindow() { ::close(socket_); }

 private:
  static std::string Number(std::size_t value, int num_bytes) {
    std::string bytes;
    for (int i = num_bytes - 1; i >= 0; --i) {
      bytes += static_cast<char>((value >> (8 * i)) & 0xFF);
    }
    return bytes;
  }
  static std::string Literal(const std::string& text) {
    return std::string(1, static_cast<char>(text.size())) +
           text;  // HPACK, not Huffman coded, under 127 bytes
  }
  static std::string Frame(int type, int flags, std::size_t stream, const std::string& payload) {
    return Number(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
           Number(stream, 4) + payload;
  }

  int socket_ = -1;
};

TEST_F(WireTest, AReaderThatNeverReadsHoldsNothingOpen) {
  Serve();
  v1::GenerateStreamRequest stream;
  *stream.mutable_request() = Request(20);
  const ClosedWindow unary_client(server_->address(), "Generate", stream.request().SerializeAsString());
  const ClosedWindow stream_client(server_->address(), "GenerateStream", stream.SerializeAsString());
  // Both have been generated, or given up on, and then ended.
  const auto ended = [this] {
    return sink_.Value("requests_total{code=\"OK\",finish_reason=\"max_tokens\",method=\"Generate\"}") == 1 &&
           (sink_.Value(
                "requests_total{code=\"OK\",finish_reason=\"max_tokens\",method=\"GenerateStream\"}") == 1 ||
            sink_.Value(
                "requests_total{code=\"ABORTED\",finish_reason=\"aborted\",method=\"GenerateStream\"}") == 1);
  };
  ASSERT_TRUE(Eventually(ended));
  const absl::Time begin = absl::Now();
  server_->BeginDrain();
  EXPECT_TRUE(server_->WaitUntilIdle(absl::Now() + absl::Seconds(10)));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(3)) << "the stall timeout of 0.3 s, and a tick";
}

}  // namespace
}  // namespace comoe::server
