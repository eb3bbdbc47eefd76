#include "server/status_conversion.h"

#include <array>
#include <cstddef>
#include <string>

namespace comoe::server {
namespace {

constexpr std::size_t kMaxMessageBytes = 2048;

constexpr std::array<absl::string_view, kNumStatusCodes> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// absl's raw code can be any number; gRPC's cannot.
int KnownCode(int code) {
  return code >= 0 && code < kNumStatusCodes ? code : static_cast<int>(absl::StatusCode::kUnknown);
}

std::string CutMessage(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) {
    return std::string(message);
  }
  std::size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0U) == 0x80U) {
    --end;  // not within a UTF-8 character
  }
  return std::string(message.substr(0, end)) + "...";
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) {
    return grpc::Status::OK;
  }
  return {static_cast<grpc::StatusCode>(KnownCode(status.raw_code())), CutMessage(status.message())};
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(KnownCode(status.error_code())), status.error_message());
}

absl::string_view CodeName(absl::StatusCode code) {
  return kCodeNames[static_cast<std::size_t>(KnownCode(static_cast<int>(code)))];
}

absl::Status StatusOfOutcome(const batching::RequestOutcome& outcome) {
  using Reason = batching::FinishReason;
  const auto or_else = [&outcome](absl::Status fallback) {
    return outcome.status.ok() ? fallback : outcome.status;
  };
  switch (outcome.reason) {
    case Reason::kStopEos:
    case Reason::kStopToken:
    case Reason::kMaxTokens:
    case Reason::kContextLength:
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
