// What Split and Replace look for: a literal string or a regular expression.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/json_fields.h"
#include "engine/tokenizer/regex.h"

namespace comoe::tokenizer {

// Immutable and thread-safe.
class Pattern {
 public:
  // {"String": "..."} or {"Regex": "..."}.
  static absl::StatusOr<std::unique_ptr<Pattern>> Parse(const JsonField& field);
  static std::unique_ptr<Pattern> Literal(std::string text);  // not empty
  static absl::StatusOr<std::unique_ptr<Pattern>> Expression(absl::string_view regex);

  // The text when this is a literal; it is not empty then.
  const std::string& literal() const { return literal_; }
  bool is_literal() const { return regex_ == nullptr; }

  // One thread's working memory; must not outlive the pattern.
  class Finder {
   public:
    explicit Finder(const Pattern& pattern);
    // As Regex::Matcher::FindAll. An empty text has no matches, whatever the pattern.
    absl::Status FindAll(absl::string_view text, std::vector<RegexMatch>* matches);

   private:
    const Pattern* pattern_;
    std::optional<Regex::Matcher> matcher_;
  };

 private:
  Pattern() = default;

  std::string literal_;
  std::unique_ptr<Regex> regex_;
};

}  // namespace comoe::tokenizer
