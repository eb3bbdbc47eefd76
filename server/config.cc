#include "server/config.h"

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::server {
namespace {

absl::Status CheckRange(absl::string_view name, std::int64_t value, std::int64_t lowest,
                        std::int64_t highest) {
  if (!(lowest <= value && value <= highest)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, ": it lies in [", lowest, ", ", highest, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckAddress(absl::string_view name, absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) {
    return absl::OkStatus();
  }
  const std::size_t colon = address.rfind(':');
  std::uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is '", address, "': it has the form HOST:PORT, as in 127.0.0.1:50051"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateServerConfig(const ServerConfig& config) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  COMOE_RETURN_IF_ERROR(CheckAddress("listen", config.listen));
  if (!config.metrics_listen.empty()) {
    COMOE_RETURN_IF_ERROR(CheckAddress("metrics-listen", config.metrics_listen));
  }
  if (!config.admin_listen.empty()) {
    COMOE_RETURN_IF_ERROR(CheckAddress("admin-listen", config.admin_listen));
  }
  const Limits& limits = config.limits;
  COMOE_RETURN_IF_ERROR(CheckRange("max-message-bytes", limits.max_message_bytes, 1024, kGiB));
  COMOE_RETURN_IF_ERROR(CheckRange("max-metadata-bytes", limits.max_metadata_bytes, 1024, 1 << 20));
  COMOE_RETURN_IF_ERROR(CheckRange("max-prompt-bytes", limits.max_prompt_bytes, 1, limits.max_message_bytes));
  COMOE_RETURN_IF_ERROR(CheckRange("default-max-tokens", limits.default_max_tokens, 1, INT32_MAX));
  COMOE_RETURN_IF_ERROR(
      CheckRange("max-stream-backlog-tokens", limits.max_stream_backlog_tokens, 1, INT32_MAX));
  COMOE_RETURN_IF_ERROR(
      CheckRange("max-total-backlog-tokens", limits.max_total_backlog_tokens, 1, INT32_MAX));
  COMOE_RETURN_IF_ERROR(CheckRange("max-choices", limits.max_choices, 1, 1024));
  COMOE_RETURN_IF_ERROR(CheckRange("max-batch-tokens", config.scheduler.max_batch_tokens, 1, INT32_MAX));
  COMOE_RETURN_IF_ERROR(CheckRange("max-sequences", config.scheduler.max_sequences, 1, 65536));
  COMOE_RETURN_IF_ERROR(CheckRange("max-waiting", config.scheduler.max_waiting_requests, 0, 1000000));
  COMOE_RETURN_IF_ERROR(CheckRange("max-connections", config.max_connections, 1, 1000000));
  COMOE_RETURN_IF_ERROR(CheckRange("tokenizer-threads", config.tokenizer_threads, 1, 64));
  COMOE_RETURN_IF_ERROR(CheckRange("output-threads", config.output_threads, 1, 64));
  if (!(limits.stream_stall_timeout > absl::ZeroDuration())) {
    return absl::InvalidArgumentError("stream-stall-timeout must be above 0 seconds");
  }
  if (!(config.engine_stall_timeout > absl::ZeroDuration())) {
    return absl::InvalidArgumentError("engine-stall-timeout must be above 0 seconds");
  }
  if (!(config.drain_timeout >= absl::ZeroDuration())) {
    return absl::InvalidArgumentError("drain-timeout must be 0 seconds or more");
  }
  return absl::OkStatus();
}

bool IsLoopback(absl::string_view address) {
  if (absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:")) {
    return true;
  }
  const std::size_t colon = address.rfind(':');
  const absl::string_view host = address.substr(0, colon);
  if (host == "localhost" || host == "[::1]" || host == "::1") {
    return true;
  }
  // 127.x.y.z and nothing longer: "127.example.com" is a name.
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

std::string WithPort(absl::string_view address, int port) {
  const std::size_t colon = address.rfind(':');
  if (absl::StartsWith(address, "unix") || colon == absl::string_view::npos) {
    return std::string(address);
  }
  return absl::StrCat(address.substr(0, colon + 1), port);
}

}  // namespace comoe::server
