// Checks of single fields, for all request messages. Pure functions. Errors begin with the field's path and
// name it in their details.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/model_info.h"
#include "engine/base/ids.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/repeated_field.h"
#include "server/config.h"
#include "server/error_details.h"

namespace comoe::server {

template <typename Value>
absl::Status OutOfRange(absl::string_view field, Value value, absl::string_view range) {
  return InvalidField(field, absl::StrCat("is ", value, ": it lies in ", range));
}
// UNIMPLEMENTED: "FIELD: FEATURE is not supported by this server; INSTEAD".
absl::Status NotBuilt(absl::string_view field, absl::string_view feature, absl::string_view instead);

// "" and the served model's name are fine; NOT_FOUND names what is served.
absl::Status CheckModel(absl::string_view name, const api::ModelInfo& model);
absl::Status CheckTextBytes(absl::string_view field, absl::string_view text, const Limits& limits);
// Token ids of a message, each checked against the vocabulary.
absl::StatusOr<std::vector<base::TokenId>> ToTokenIds(
    absl::string_view field, const google::protobuf::RepeatedField<std::uint32_t>& ids,
    std::int32_t vocab_size);
// 1 to 128 bytes of [A-Za-z0-9._:-].
absl::Status CheckRequestId(absl::string_view field, absl::string_view id);
// A fresh one, as a UUID is written.
std::string MakeRequestId();
// At least `lowest` (0 or 1) nanoseconds.
absl::StatusOr<absl::Duration> ToDuration(absl::string_view field, const google::protobuf::Duration& message,
                                          int lowest);

}  // namespace comoe::server
