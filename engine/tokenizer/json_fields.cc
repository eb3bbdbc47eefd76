#include "engine/tokenizer/json_fields.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

// A value of a hostile file in an error message: short, and nothing that a terminal would act on.
std::string Quoted(absl::string_view text) {
  constexpr std::size_t kMaxShown = 60;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxShown)), text.size() > kMaxShown ? "..." : "",
                      "\"");
}

}  // namespace

bool JsonField::Has(absl::string_view name) const {
  if (!value_->is_object()) {
    return false;
  }
  const auto found = value_->find(std::string(name));
  return found != value_->end() && !found->is_null();
}

absl::StatusOr<JsonField> JsonField::Get(absl::string_view name) const {
  if (!value_->is_object()) {
    return Error(absl::StrCat("an object is expected, found ", value_->type_name()));
  }
  const auto found = value_->find(std::string(name));
  if (found == value_->end()) {
    return Error(absl::StrCat("the field \"", name, "\" is missing"));
  }
  const bool is_root = !path_.empty() && path_.back() == ' ';
  return JsonField(&*found, absl::StrCat(path_, is_root ? "" : ".", name));
}

absl::StatusOr<std::string> JsonField::GetString(absl::string_view name) const {
  COMOE_ASSIGN_OR_RETURN(const JsonField field, Get(name));
  return field.AsString();
}

absl::StatusOr<bool> JsonField::GetBool(absl::string_view name) const {
  COMOE_ASSIGN_OR_RETURN(const JsonField field, Get(name));
  return field.AsBool();
}

absl::StatusOr<bool> JsonField::GetBoolOr(absl::string_view name, bool otherwise) const {
  return Has(name) ? GetBool(name) : absl::StatusOr<bool>(otherwise);
}

absl::StatusOr<std::int64_t> JsonField::GetInt(absl::string_view name, std::int64_t low,
                                               std::int64_t high) const {
  COMOE_ASSIGN_OR_RETURN(const JsonField field, Get(name));
  return field.AsInt(low, high);
}

absl::StatusOr<std::vector<JsonField>> JsonField::GetArray(absl::string_view name) const {
  COMOE_ASSIGN_OR_RETURN(const JsonField field, Get(name));
  return field.AsArray();
}

absl::StatusOr<char32_t> JsonField::GetCharacter(absl::string_view name) const {
  COMOE_ASSIGN_OR_RETURN(const JsonField field, Get(name));
  COMOE_ASSIGN_OR_RETURN(const std::string text, field.AsString());
  if (CountCodePoints(text) != 1) {
    return field.Error(absl::StrCat("one character is expected, found ", Quoted(text)));
  }
  std::size_t pos = 0;
  return NextCodePoint(text, &pos);
}

absl::StatusOr<std::size_t> JsonField::GetChoice(absl::string_view name,
                                                 absl::Span<const absl::string_view> choices) const {
  COMOE_ASSIGN_OR_RETURN(const JsonField field, Get(name));
  COMOE_ASSIGN_OR_RETURN(const std::string text, field.AsString());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == text) {
      return i;
    }
  }
  return field.Unsupported(text, choices);
}

absl::StatusOr<std::string> JsonField::AsString() const {
  if (!value_->is_string()) {
    return Error(absl::StrCat("a string is expected, found ", value_->type_name()));
  }
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonField::AsBool() const {
  if (!value_->is_boolean()) {
    return Error(absl::StrCat("true or false is expected, found ", value_->type_name()));
  }
  return value_->get<bool>();
}

absl::StatusOr<std::int64_t> JsonField::AsInt(std::int64_t low, std::int64_t high) const {
  if (!value_->is_number_integer()) {
    return Error(absl::StrCat("an integer is expected, found ", value_->type_name()));
  }
  const bool is_huge =
      value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const std::int64_t value = is_huge ? INT64_MAX : value_->get<std::int64_t>();
  if (value < low || value > high) {
    return Error(absl::StrCat(value_->dump(), " is not between ", low, " and ", high));
  }
  return value;
}

absl::StatusOr<std::vector<JsonField>> JsonField::AsArray() const {
  if (!value_->is_array()) {
    return Error(absl::StrCat("an array is expected, found ", value_->type_name()));
  }
  std::vector<JsonField> fields;
  fields.reserve(value_->size());
  for (const nlohmann::json& element : *value_) {
    fields.emplace_back(&element, absl::StrCat(path_, "[", fields.size(), "]"));
  }
  return fields;
}

std::vector<std::pair<std::string, JsonField>> JsonField::Members() const {
  std::vector<std::pair<std::string, JsonField>> members;
  if (value_->is_object()) {
    for (const auto& item : value_->items()) {
      members.emplace_back(item.key(),
                           JsonField(&item.value(), absl::StrCat(path_, ".", absl::CHexEscape(item.key()))));
    }
  }
  return members;
}

absl::Status JsonField::Error(absl::string_view what) const {
  const bool is_root = !path_.empty() && path_.back() == ' ';
  return absl::InvalidArgumentError(absl::StrCat(path_, is_root ? "" : ": ", what));
}

absl::Status JsonField::Unsupported(absl::string_view name,
                                    absl::Span<const absl::string_view> supported) const {
  return absl::UnimplementedError(absl::StrCat(
      path_, ": ", Quoted(name), " is not supported; supported: ", absl::StrJoin(supported, ", ")));
}

}  // namespace comoe::tokenizer
