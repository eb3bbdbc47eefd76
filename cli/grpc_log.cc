#include "cli/grpc_log.h"

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"

namespace comoe::cli {
namespace {

void LogForGrpc(gpr_log_func_args* args) { base::Log(base::LogLevel::kDebug, "grpc", args->message); }

// Protobuf complains of every string that is not UTF-8: a client's doing, so not for the log of the service.
void LogForProtobuf(google::protobuf::LogLevel /*level*/, const char* /*file*/, int /*line*/,
                    const std::string& message) {
  base::Log(base::LogLevel::kDebug, "protobuf", message);
}

}  // namespace

absl::Status SetLogLevelByName(absl::string_view name) {
  using base::LogLevel;
  if (name == "debug") {
    base::SetLogLevel(LogLevel::kDebug);
  } else if (name == "info") {
    base::SetLogLevel(LogLevel::kInfo);
  } else if (name == "warning") {
    base::SetLogLevel(LogLevel::kWarning);
  } else if (name == "error") {
    base::SetLogLevel(LogLevel::kError);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log-level is '", name, "': it is debug, info, warning or error"));
  }
  return absl::OkStatus();
}

void RouteGrpcLog() {
  gpr_set_log_function(&LogForGrpc);
  google::protobuf::SetLogHandler(&LogForProtobuf);
}

}  // namespace comoe::cli
