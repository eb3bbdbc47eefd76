#include "engine/tokenizer/pattern.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace comoe::tokenizer {

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Parse(const JsonField& field) {
  if (field.Has("String")) {
    COMOE_ASSIGN_OR_RETURN(std::string text, field.GetString("String"));
    if (!text.empty()) {
      return Literal(std::move(text));
    }
    return Expression("");  // matches between any two characters
  }
  if (!field.Has("Regex")) {
    return field.Error("{\"String\": ...} or {\"Regex\": ...} is expected");
  }
  COMOE_ASSIGN_OR_RETURN(const JsonField source, field.Get("Regex"));
  COMOE_ASSIGN_OR_RETURN(const std::string regex, source.AsString());
  absl::StatusOr<std::unique_ptr<Pattern>> pattern = Expression(regex);
  return pattern.ok() ? std::move(pattern) : base::Annotate(pattern.status(), source.path());
}

std::unique_ptr<Pattern> Pattern::Literal(std::string text) {
  std::unique_ptr<Pattern> pattern(new Pattern());
  pattern->literal_ = std::move(text);
  return pattern;
}

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Expression(absl::string_view regex) {
  std::unique_ptr<Pattern> pattern(new Pattern());
  COMOE_ASSIGN_OR_RETURN(pattern->regex_, Regex::Compile(regex));
  return pattern;
}

Pattern::Finder::Finder(const Pattern& pattern) : pattern_(&pattern) {
  if (!pattern.is_literal()) {
    matcher_.emplace(*pattern.regex_);
  }
}

absl::Status Pattern::Finder::FindAll(absl::string_view text, std::vector<RegexMatch>* matches) {
  matches->clear();
  if (text.empty()) {
    return absl::OkStatus();
  }
  if (matcher_.has_value()) {
    return matcher_->FindAll(text, matches);
  }
  const absl::string_view needle = pattern_->literal_;
  for (std::size_t at = text.find(needle); at != absl::string_view::npos;
       at = text.find(needle, at + needle.size())) {
    matches->push_back({at, at + needle.size()});
  }
  return absl::OkStatus();
}

}  // namespace comoe::tokenizer
