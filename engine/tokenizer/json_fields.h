// Typed access to a parsed JSON value whose errors name the file and the field: "tokenizer.json:
// pre_tokenizer.pretokenizers[1].behavior: ...". Internal to the folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace comoe::tokenizer {

// A value and where it stands. Does not own the value: the document must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_string() const { return value_->is_string(); }
  const char* type_name() const { return value_->type_name(); }
  bool IsZero() const { return value_->is_number() && value_->get<double>() == 0; }

  // Of an object: the member is there and not null.
  bool Has(absl::string_view name) const;
  // A required member. INVALID_ARGUMENT when this is no object or lacks it.
  absl::StatusOr<JsonField> Get(absl::string_view name) const;
  absl::StatusOr<std::string> GetString(absl::string_view name) const;
  absl::StatusOr<bool> GetBool(absl::string_view name) const;
  absl::StatusOr<bool> GetBoolOr(absl::string_view name, bool otherwise) const;
  absl::StatusOr<std::int64_t> GetInt(absl::string_view name, std::int64_t low, std::int64_t high) const;
  absl::StatusOr<std::vector<JsonField>> GetArray(absl::string_view name) const;
  // Exactly one code point.
  absl::StatusOr<char32_t> GetCharacter(absl::string_view name) const;
  // One of `choices`: its index.
  absl::StatusOr<std::size_t> GetChoice(absl::string_view name,
                                        absl::Span<const absl::string_view> choices) const;

  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<bool> AsBool() const;
  absl::StatusOr<std::int64_t> AsInt(std::int64_t low, std::int64_t high) const;
  absl::StatusOr<std::vector<JsonField>> AsArray() const;
  std::vector<std::pair<std::string, JsonField>> Members() const;  // none when this is no object

  // INVALID_ARGUMENT "path: what".
  absl::Status Error(absl::string_view what) const;
  // UNIMPLEMENTED: this field names `name`, which is none of `supported`.
  absl::Status Unsupported(absl::string_view name, absl::Span<const absl::string_view> supported) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace comoe::tokenizer
