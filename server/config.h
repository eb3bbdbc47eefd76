// Settings of the service: where it listens, what it accepts, how long it waits. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduler/batching/scheduler.h"

namespace comoe::server {

// What one client may ask for. GetServerInfo reports them.
struct Limits {
  std::int64_t max_message_bytes = std::int64_t{8}
                                   << 20;  // of a request message; gRPC's own default is 4 MiB
  std::int64_t max_metadata_bytes = std::int64_t{8} << 10;  // of a request's headers
  std::int64_t max_answer_bytes = std::int64_t{16} << 20;
  // Below max_message_bytes, so that the error that names the field wins over the library's.
  std::int64_t max_prompt_bytes = std::int64_t{4} << 20;
  std::int64_t default_max_tokens = 256;  // when the request names none
  // A stream is ended when its reader has taken nothing for that long or is that far behind. HTTP/2 flow
  // control alone does not bound anything: it lets about 4 MiB of small messages through to a client that
  // never reads.
  absl::Duration stream_stall_timeout = absl::Seconds(30);
  std::int64_t max_stream_backlog_tokens = 4096;
  // Of all streams together; the one that is furthest behind is ended.
  std::int64_t max_total_backlog_tokens = 65536;
  std::int64_t max_choices = 8;  // completions of one request
};

struct ServerConfig {
  std::string listen = "127.0.0.1:50051";         // port 0: any free one
  std::string metrics_listen = "127.0.0.1:9400";  // "": no /metrics
  // Where AdminService, reflection and channelz are. "": AdminService and reflection are on `listen` if that
  // is loopback, else nowhere.
  std::string admin_listen;
  Limits limits;
  batching::SchedulerOptions scheduler;  // as the scheduler got them; reported by GetServerInfo
  int tokenizer_threads = 2;
  // Text and writes of all streams: about 3 us of CPU a streamed message, so one thread serves thousands of
  // tokens a second.
  int output_threads = 1;
  // Clients that are connected at once; one more is closed at once. Not for unix sockets.
  std::int64_t max_connections = 512;
  // A connection without a call is closed after that time; clients connect again by themselves.
  absl::Duration max_connection_idle = absl::Minutes(30);
  // Health is NOT_SERVING while requests run and the engine has finished no step for that long.
  absl::Duration engine_stall_timeout = absl::Seconds(120);
  // Waiting for a tokenizer thread, and their text together.
  std::int64_t max_pending_requests = 1024;
  std::int64_t max_pending_bytes = std::int64_t{64} << 20;
  // What the gRPC library may hold of messages that come and go; above, it reads no more until some have
  // gone.
  std::int64_t max_network_bytes = std::int64_t{256} << 20;
  absl::Duration drain_timeout = absl::Seconds(10);
  // Called by AdminService.Drain, on a thread of gRPC's: begins what SIGTERM begins and returns. Empty:
  // refused.
  std::function<void(absl::Duration timeout)> on_drain;
  absl::Duration warmup_timeout = absl::Minutes(5);
};

// INVALID_ARGUMENT naming the setting and its range.
absl::Status ValidateServerConfig(const ServerConfig& config);

// True for addresses that only this machine can reach: 127.0.0.0/8, ::1, localhost, unix sockets. Pure text.
bool IsLoopback(absl::string_view address);

// "HOST:PORT" with its port replaced; for addresses that asked for port 0.
std::string WithPort(absl::string_view address, int port);

}  // namespace comoe::server
