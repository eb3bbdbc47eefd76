#include "server/config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::server {
namespace {

TEST(Config, LoopbackIsWhatOnlyThisMachineReaches) {
  for (const char* address :
       {"127.0.0.1:50051", "127.1.2.3:1", "localhost:50051", "[::1]:50051", "unix:/run/x"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0:50051", "[::]:50051", "10.0.0.1:1", "127.example.com:1", "localhost.example:1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(Config, PortIsReplaced) {
  EXPECT_EQ(WithPort("127.0.0.1:0", 4711), "127.0.0.1:4711");
  EXPECT_EQ(WithPort("[::1]:0", 4711), "[::1]:4711");
  EXPECT_EQ(WithPort("unix:/run/x", 1), "unix:/run/x");
}

TEST(Config, DefaultsAreValid) { EXPECT_TRUE(ValidateServerConfig({}).ok()); }

TEST(Config, EverySettingOutOfRangeIsNamed) {
  const auto check = [](auto change, const std::string& name) {
    ServerConfig config;
    change(config);
    const absl::Status status = ValidateServerConfig(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(name));
  };
  check([](ServerConfig& c) { c.listen = "127.0.0.1"; }, "listen");
  check([](ServerConfig& c) { c.listen = ":50051"; }, "listen");
  check([](ServerConfig& c) { c.listen = "host:65536"; }, "listen");
  check([](ServerConfig& c) { c.listen = "host:-1"; }, "listen");
  check([](ServerConfig& c) { c.metrics_listen = "host:http"; }, "metrics-listen");
  check([](ServerConfig& c) { c.limits.max_message_bytes = 1; }, "max-message-bytes");
  check([](ServerConfig& c) { c.limits.max_prompt_bytes = std::int64_t{1} << 40; }, "max-prompt-bytes");
  check([](ServerConfig& c) { c.limits.default_max_tokens = 0; }, "default-max-tokens");
  check([](ServerConfig& c) { c.limits.max_stream_backlog_tokens = 0; }, "max-stream-backlog-tokens");
  check([](ServerConfig& c) { c.limits.stream_stall_timeout = absl::ZeroDuration(); },
        "stream-stall-timeout");
  check([](ServerConfig& c) { c.scheduler.max_batch_tokens = 0; }, "max-batch-tokens");
  check([](ServerConfig& c) { c.scheduler.max_sequences = -1; }, "max-sequences");
  check([](ServerConfig& c) { c.scheduler.max_waiting_requests = -1; }, "max-waiting");
  check([](ServerConfig& c) { c.tokenizer_threads = 0; }, "tokenizer-threads");
  check([](ServerConfig& c) { c.output_threads = 0; }, "output-threads");
  check([](ServerConfig& c) { c.drain_timeout = absl::Seconds(-1); }, "drain-timeout");
}

}  // namespace
}  // namespace comoe::server
