#include "server/error_details.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/status_conversion.h"

namespace comoe::server {
namespace {

namespace rpc = ::google::rpc;

// gRPC's default limit for all headers is 8 KiB, in which the message counts threefold (percent-encoded) and
// the details by four thirds (base64).
constexpr std::size_t kMaxDetailBytes = 512;
constexpr int kRetryDelayMs = 1000;
constexpr absl::string_view kDomain = "comoe";
constexpr absl::string_view kTypePrefix = "type.googleapis.com/";

template <typename Message>
std::string TypeUrl() {
  return absl::StrCat(kTypePrefix, Message::descriptor()->full_name());
}

template <typename Message>
void SetDetail(const Message& message, absl::Status* status) {
  status->SetPayload(TypeUrl<Message>(), absl::Cord(message.SerializeAsString()));
}

// Empty if there is none.
template <typename Message>
Message GetDetail(const absl::Status& status) {
  Message message;
  if (const auto payload = status.GetPayload(TypeUrl<Message>()); payload.has_value()) {
    message.ParseFromString(std::string(*payload));
  }
  return message;
}

void SetField(absl::string_view field, absl::string_view description, absl::Status* status) {
  rpc::BadRequest bad;
  rpc::BadRequest::FieldViolation* violation = bad.add_field_violations();
  violation->set_field(CutText(field, kMaxDetailBytes));
  violation->set_description(CutText(description, kMaxDetailBytes));
  SetDetail(bad, status);
}

void AddDetail(const google::protobuf::Message& message, rpc::Status* out) {
  google::protobuf::Any* any = out->add_details();
  any->set_type_url(absl::StrCat(kTypePrefix, message.GetDescriptor()->full_name()));
  message.SerializeToString(any->mutable_value());
}

}  // namespace

absl::Status InvalidField(absl::string_view field, absl::string_view description) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(field, " ", description));
  SetField(field, description, &status);
  return status;
}

absl::Status WithField(absl::Status status, absl::string_view field) {
  const std::string description(status.message());
  SetField(field, description, &status);
  return status;
}

absl::Status PrefixField(const absl::Status& status, absl::string_view prefix) {
  auto bad = GetDetail<rpc::BadRequest>(status);
  if (bad.field_violations().empty()) {
    return status;
  }
  rpc::BadRequest::FieldViolation& violation = *bad.mutable_field_violations(0);
  const bool leads = absl::StartsWith(status.message(), violation.field());
  absl::Status prefixed(status.code(),
                        leads ? absl::StrCat(prefix, status.message()) : std::string(status.message()));
  status.ForEachPayload(
      [&prefixed](absl::string_view url, const absl::Cord& payload) { prefixed.SetPayload(url, payload); });
  violation.set_field(absl::StrCat(prefix, violation.field()));
  SetDetail(bad, &prefixed);
  return prefixed;
}

std::string FieldOf(const absl::Status& status) {
  const auto bad = GetDetail<rpc::BadRequest>(status);
  return bad.field_violations().empty() ? "" : bad.field_violations(0).field();
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(std::string(kDomain));
  SetDetail(info, &status);
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  const auto info = GetDetail<rpc::ErrorInfo>(status);
  return info.reason().empty() ? std::string(CodeName(status.code())) : info.reason();
}

absl::Status AnswerTooLarge(absl::string_view what, std::size_t bytes, std::int64_t max_bytes) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        what, " has ", bytes, " bytes: this server answers with ", max_bytes, " at most")),
                    kReasonAnswerTooLarge);
}

int RetryDelayMs(const absl::Status& status) {
  const bool busy = status.code() == absl::StatusCode::kResourceExhausted &&
                    absl::string_view(ReasonOf(status)) != kReasonAnswerTooLarge;
  return busy || status.code() == absl::StatusCode::kUnavailable ? kRetryDelayMs : 0;
}

std::string SerializeDetails(int code, absl::string_view message, const absl::Status& status) {
  rpc::Status out;
  out.set_code(code);
  out.set_message(std::string(message));
  rpc::ErrorInfo info;
  info.set_reason(ReasonOf(status));
  info.set_domain(std::string(kDomain));
  AddDetail(info, &out);
  if (const auto bad = GetDetail<rpc::BadRequest>(status); !bad.field_violations().empty()) {
    AddDetail(bad, &out);
  }
  if (const int delay_ms = RetryDelayMs(status); delay_ms > 0) {
    rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(delay_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(delay_ms % 1000 * 1000000);
    AddDetail(retry, &out);
  }
  return out.SerializeAsString();
}

}  // namespace comoe::server
