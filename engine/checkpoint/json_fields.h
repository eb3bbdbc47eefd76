// Typed, bounded access to the fields of one JSON object, with errors that name file and field.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace comoe::checkpoint {

// A JSON object of limited depth (64) or INVALID_ARGUMENT naming the file and where it goes wrong.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view file);

// A view of an object that must outlive it. A field that is absent or null is "not set".
class JsonFields {
 public:
  // `prefix` is put before field names in messages: "rope_scaling.".
  JsonFields(const nlohmann::json* object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  // nullptr when not set.
  const nlohmann::json* Find(absl::string_view field) const;
  bool Has(absl::string_view field) const { return Find(field) != nullptr; }

  // A whole number in [low, high]; without a fallback the field must be set.
  absl::StatusOr<std::int64_t> Integer(absl::string_view field, std::int64_t low, std::int64_t high) const;
  absl::StatusOr<std::int64_t> IntegerOr(absl::string_view field, std::int64_t fallback, std::int64_t low,
                                         std::int64_t high) const;
  // A finite number in [low, high], written with or without a fraction.
  absl::StatusOr<double> Number(absl::string_view field, double low, double high) const;
  absl::StatusOr<double> NumberOr(absl::string_view field, double fallback, double low, double high) const;
  absl::StatusOr<bool> BoolOr(absl::string_view field, bool fallback) const;
  absl::StatusOr<std::string> Text(absl::string_view field) const;
  absl::StatusOr<std::string> TextOr(absl::string_view field, absl::string_view fallback) const;

  // "config.json: rope_scaling.factor"
  std::string Place(absl::string_view field) const;
  absl::Status Invalid(absl::string_view field, absl::string_view what) const;
  absl::Status Unsupported(absl::string_view field, absl::string_view what) const;

  const std::string& file() const { return file_; }

 private:
  const nlohmann::json* object_;
  std::string file_;
  std::string prefix_;
};

// A JSON value as messages show it: cut after 60 bytes, control characters escaped.
std::string ShowJson(const nlohmann::json& value);

// Checks one integer of an array; `place` is what messages call it.
absl::StatusOr<std::int64_t> IntegerInRange(const nlohmann::json& value, absl::string_view place,
                                            std::int64_t low, std::int64_t high);

}  // namespace comoe::checkpoint
