#include "server/status_conversion.h"

#include <array>
#include <cstddef>
#include <string>

#include "server/error_details.h"

namespace comoe::server {
namespace {

constexpr std::size_t kMaxMessageBytes = 1024;

constexpr std::array<absl::string_view, kNumStatusCodes> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// absl's raw code can be any number; gRPC's cannot.
int KnownCode(int code) {
  return code >= 0 && code < kNumStatusCodes ? code : static_cast<int>(absl::StatusCode::kUnknown);
}

}  // namespace

std::string CutText(absl::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) {
    return std::string(text);
  }
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;  // not within a UTF-8 character
  }
  return std::string(text.substr(0, end)) + "...";
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  const int code = KnownCode(status.raw_code());
  const std::string message = CutText(status.message(), kMaxMessageBytes);
  return {static_cast<grpc::StatusCode>(code), message, SerializeDetails(code, message, status)};
}

void AddTrailers(const absl::Status& status, grpc::CallbackServerContext* context) {
  if (status.code() == absl::StatusCode::kUnavailable) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(RetryDelayMs(status)));
  }
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(KnownCode(status.error_code())), status.error_message());
}

absl::string_view CodeName(absl::StatusCode code) {
  return kCodeNames[static_cast<std::size_t>(KnownCode(static_cast<int>(code)))];
}

absl::Status StatusOfOutcome(const batching::RequestOutcome& outcome) {
  using Reason = batching::FinishReason;
  const auto or_else = [&outcome](const absl::Status& fallback) {
    return outcome.status.ok() ? fallback : outcome.status;
  };
  switch (outcome.reason) {
    case Reason::kStopEos:
    case Reason::kStopString:
    case Reason::kStopToken:
    case Reason::kMaxTokens:
    case Reason::kContextLength:
    case Reason::kTimeLimit:
      return absl::OkStatus();
    case Reason::kAborted:
      return or_else(absl::CancelledError("the request was aborted"));
    case Reason::kDeadline:
      return or_else(absl::DeadlineExceededError("the deadline passed before the completion was done"));
    case Reason::kDraining:
      return or_else(absl::UnavailableError("the server is shutting down: try another"));
    case Reason::kError:
      break;
  }
  return or_else(absl::InternalError("the request failed without saying why"));
}

}  // namespace comoe::server
