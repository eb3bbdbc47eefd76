#include "server/request_fields.h"

#include <cstddef>

#include "absl/strings/str_format.h"
#include "engine/base/rng.h"

namespace comoe::server {
namespace {

constexpr std::size_t kMaxRequestIdBytes = 128;
constexpr std::int64_t kMaxDurationSeconds =
    315576000000;  // of the message's own documentation: 10,000 years

}  // namespace

absl::Status NotBuilt(absl::string_view field, absl::string_view feature, absl::string_view instead) {
  return WithField(absl::UnimplementedError(
                       absl::StrCat(field, ": ", feature, " is not supported by this server; ", instead)),
                   field);
}

absl::Status CheckModel(absl::string_view name, const api::ModelInfo& model) {
  if (name.empty() || name == absl::string_view(model.name)) {
    return absl::OkStatus();
  }
  return WithReason(absl::NotFoundError(absl::StrCat("model '", name.substr(0, 128),
                                                     "' is not served here; '", model.name, "' is")),
                    "MODEL_NOT_FOUND");
}

absl::Status CheckTextBytes(absl::string_view field, absl::string_view text, const Limits& limits) {
  if (text.size() > static_cast<std::size_t>(limits.max_prompt_bytes)) {
    return InvalidField(field,
                        absl::StrCat("has ", text.size(), " bytes: ", limits.max_prompt_bytes, " at most"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<base::TokenId>> ToTokenIds(
    absl::string_view field, const google::protobuf::RepeatedField<std::uint32_t>& ids,
    std::int32_t vocab_size) {
  std::vector<base::TokenId> out;
  out.reserve(static_cast<std::size_t>(ids.size()));
  for (int i = 0; i < ids.size(); ++i) {
    if (ids.Get(i) >= static_cast<std::uint32_t>(vocab_size)) {
      return InvalidField(absl::StrCat(field, "[", i, "]"),
                          absl::StrCat("is ", ids.Get(i), ": the vocabulary has ", vocab_size, " tokens"));
    }
    out.push_back(static_cast<base::TokenId>(ids.Get(i)));
  }
  return out;
}

absl::Status CheckRequestId(absl::string_view field, absl::string_view id) {
  constexpr absl::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
  if (id.empty() || id.size() > kMaxRequestIdBytes) {
    return InvalidField(field, absl::StrCat("has ", id.size(), " bytes: 1 to ", kMaxRequestIdBytes));
  }
  if (id.find_first_not_of(kAllowed) != absl::string_view::npos) {
    return InvalidField(field, "holds a character outside [A-Za-z0-9._:-]");
  }
  return absl::OkStatus();
}

std::string MakeRequestId() {
  const std::uint64_t a = base::DrawSeed();
  const std::uint64_t b = base::DrawSeed();
  // As a UUID of version 4 is written.
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%012x", a >> 32, (a >> 16) & 0xFFFF, a & 0xFFF,
                         0x8000 | ((b >> 48) & 0x3FFF), b & 0xFFFFFFFFFFFF);
}

absl::StatusOr<absl::Duration> ToDuration(absl::string_view field, const google::protobuf::Duration& message,
                                          int lowest) {
  if (message.seconds() < 0 || message.nanos() < 0) {
    return InvalidField(field, "is below 0");
  }
  if (message.seconds() > kMaxDurationSeconds || message.nanos() > 999999999) {
    return InvalidField(field, "is no valid duration: at most 315576000000 s and 999999999 ns");
  }
  const absl::Duration duration = absl::Seconds(message.seconds()) + absl::Nanoseconds(message.nanos());
  if (duration < absl::Nanoseconds(lowest)) {
    return InvalidField(field, "is 0: it is above 0");
  }
  return duration;
}

}  // namespace comoe::server
