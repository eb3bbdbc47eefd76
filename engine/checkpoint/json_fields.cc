#include "engine/checkpoint/json_fields.h"

#include <cmath>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

// The depth of nesting, counted without recursion and before anything is built. Brackets in strings do not
// count.
bool DeeperThan(absl::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limit) {
        return true;
      }
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

// nlohmann's text without its "[json.exception.parse_error.101] " tag.
std::string ParserMessage(const char* what) {
  absl::string_view text = what;
  const std::size_t tag_end = text.find("] ");
  if (tag_end != absl::string_view::npos) {
    text.remove_prefix(tag_end + 2);
  }
  return absl::Utf8SafeCEscape(text.substr(0, 300));
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(absl::string_view text, absl::string_view file) {
  if (DeeperThan(text, kMaxDepth)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": nested deeper than ", kMaxDepth, " levels"));
  }
  Json document;
  try {
    document = Json::parse(text.data(), text.data() + text.size());
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not JSON: ", ParserMessage(error.what())));
  }
  if (!document.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": holds ", document.type_name(), ", not a JSON object"));
  }
  return document;
}

std::string ShowJson(const Json& value) {
  constexpr std::size_t kLimit = 60;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return absl::StrCat(absl::Utf8SafeCEscape(absl::string_view(text).substr(0, kLimit)),
                      text.size() > kLimit ? "..." : "");
}

absl::StatusOr<std::int64_t> IntegerInRange(const Json& value, absl::string_view place, std::int64_t low,
                                            std::int64_t high) {
  if (!value.is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, " is ", ShowJson(value), "; a whole number is needed"));
  }
  const bool too_large =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t number = too_large ? 0 : value.get<std::int64_t>();
  if (too_large || number < low || number > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, " is ", ShowJson(value), "; it must lie between ", low, " and ", high));
  }
  return number;
}

const Json* JsonFields::Find(absl::string_view field) const {
  const auto found = object_->find(std::string(field));
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonFields::Place(absl::string_view field) const {
  return absl::StrCat(file_, ": ", prefix_, field);
}

absl::Status JsonFields::Invalid(absl::string_view field, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Place(field), " ", what));
}

absl::Status JsonFields::Unsupported(absl::string_view field, absl::string_view what) const {
  return absl::UnimplementedError(absl::StrCat(Place(field), " ", what));
}

absl::StatusOr<std::int64_t> JsonFields::Integer(absl::string_view field, std::int64_t low,
                                                 std::int64_t high) const {
  const Json* value = Find(field);
  if (value == nullptr) {
    return Invalid(field, "is missing; a whole number is needed");
  }
  return IntegerInRange(*value, Place(field), low, high);
}

absl::StatusOr<std::int64_t> JsonFields::IntegerOr(absl::string_view field, std::int64_t fallback,
                                                   std::int64_t low, std::int64_t high) const {
  return Has(field) ? Integer(field, low, high) : fallback;
}

absl::StatusOr<double> JsonFields::Number(absl::string_view field, double low, double high) const {
  const Json* value = Find(field);
  if (value == nullptr) {
    return Invalid(field, "is missing; a number is needed");
  }
  if (!value->is_number()) {
    return Invalid(field, absl::StrCat("is ", ShowJson(*value), "; a number is needed"));
  }
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {  // false for NaN
    return Invalid(field,
                   absl::StrCat("is ", ShowJson(*value), "; it must lie between ", low, " and ", high));
  }
  return number;
}

absl::StatusOr<double> JsonFields::NumberOr(absl::string_view field, double fallback, double low,
                                            double high) const {
  return Has(field) ? Number(field, low, high) : fallback;
}

absl::StatusOr<bool> JsonFields::BoolOr(absl::string_view field, bool fallback) const {
  const Json* value = Find(field);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    return Invalid(field, absl::StrCat("is ", ShowJson(*value), "; true or false is needed"));
  }
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonFields::Text(absl::string_view field) const {
  const Json* value = Find(field);
  if (value == nullptr) {
    return Invalid(field, "is missing; a text is needed");
  }
  if (!value->is_string()) {
    return Invalid(field, absl::StrCat("is ", ShowJson(*value), "; a text is needed"));
  }
  return value->get<std::string>();
}

absl::StatusOr<std::string> JsonFields::TextOr(absl::string_view field, absl::string_view fallback) const {
  return Has(field) ? Text(field) : std::string(fallback);
}

}  // namespace comoe::checkpoint
