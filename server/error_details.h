// What an error says beside its code and message: which field is wrong, a reason for programs, when to try
// again. It travels as payloads of an absl::Status, from where the error is known to where gRPC's status is
// made (status_conversion.h). Pure functions; all leave the code and the message as they are but for
// PrefixField.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::server {

// Reasons of google.rpc.ErrorInfo in the domain "comoe". A status without one gets its code's name.
inline constexpr absl::string_view kReasonAnswerTooLarge = "ANSWER_TOO_LARGE";
inline constexpr absl::string_view kReasonSlowReader = "SLOW_READER";

// INVALID_ARGUMENT with the message "FIELD DESCRIPTION" and the field as a BadRequest.FieldViolation.
absl::Status InvalidField(absl::string_view field, absl::string_view description);
// Says of `status`, whose message tells what is wrong with it, which field is meant.
absl::Status WithField(absl::Status status, absl::string_view field);
// Puts `prefix` before the field, and before the message that begins with the field. A status that names none
// stays.
absl::Status PrefixField(const absl::Status& status, absl::string_view prefix);
// The field that the status names; empty if none.
std::string FieldOf(const absl::Status& status);

absl::Status WithReason(absl::Status status, absl::string_view reason);
std::string ReasonOf(const absl::Status& status);

// RESOURCE_EXHAUSTED for an answer of that many bytes. Trying again is no use.
absl::Status AnswerTooLarge(absl::string_view what, std::size_t bytes, std::int64_t max_bytes);

// How long a client shall wait before it tries again: RESOURCE_EXHAUSTED (but for an answer that is too
// large) and UNAVAILABLE. Zero: it is no use.
int RetryDelayMs(const absl::Status& status);

// google.rpc.Status, serialised, for grpc-status-details-bin. Texts are cut: it travels in a header.
std::string SerializeDetails(int code, absl::string_view message, const absl::Status& status);

}  // namespace comoe::server
