// Character classes of TranslateRegex. A class becomes one PCRE2 class where it can; nested classes,
// complements inside a class and && need alternation and lookahead, which still match exactly one code point.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/regex_syntax.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

// Deeper nesting than any pattern in use; keeps the parser's stack bounded.
constexpr int kMaxClassDepth = 16;

absl::Status Malformed(std::size_t pos, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("regular expression, byte ", pos, ": ", what));
}

// One operand of && as it is parsed: items for a plain class, and sets that cannot be written inside one.
struct ClassParts {
  std::string items;
  std::vector<std::string> sets;  // each a PCRE2 expression that matches one code point

  std::string Union() const {
    std::vector<std::string> all = sets;
    if (!items.empty()) {
      all.insert(all.begin(), absl::StrCat("[", items, "]"));
    }
    if (all.empty()) {
      return "(?!)";  // the empty set
    }
    return all.size() == 1 ? all[0] : absl::StrCat("(?:", absl::StrJoin(all, "|"), ")");
  }
};

class ClassParser {
 public:
  ClassParser(absl::string_view pattern, std::size_t pos) : pattern_(pattern), pos_(pos) {}

  std::size_t pos() const { return pos_; }

  // At '['.
  absl::StatusOr<std::string> Parse(int depth) {
    const std::size_t start = pos_++;
    if (depth > kMaxClassDepth) {
      return Malformed(start, absl::StrCat("character classes nested deeper than ", kMaxClassDepth));
    }
    const bool negated = Accept('^');
    std::vector<ClassParts> operands(1);
    bool first = true;
    while (true) {
      if (pos_ >= pattern_.size()) {
        return Malformed(start, "the character class has no ']'");
      }
      if (pattern_[pos_] == ']' && !first) {
        ++pos_;
        break;
      }
      first = false;
      if (pattern_.substr(pos_, 2) == "&&") {
        pos_ += 2;
        operands.emplace_back();
        continue;
      }
      COMOE_RETURN_IF_ERROR(ParseItem(depth, &operands.back()));
    }
    return Render(operands, negated);
  }

 private:
  static std::string Render(const std::vector<ClassParts>& operands, bool negated) {
    if (operands.size() == 1 && operands[0].sets.empty() && !operands[0].items.empty()) {
      return absl::StrCat(negated ? "[^" : "[", operands[0].items, "]");
    }
    std::string all;
    for (std::size_t i = 0; i + 1 < operands.size(); ++i) {
      absl::StrAppend(&all, "(?=", operands[i].Union(), ")");
    }
    absl::StrAppend(&all, operands.back().Union());
    return negated ? absl::StrCat("(?:(?!", all, ")(?s:.))") : absl::StrCat("(?:", all, ")");
  }

  bool Accept(char c) {
    if (pos_ < pattern_.size() && pattern_[pos_] == c) {
      ++pos_;
      return true;
    }
    return false;
  }

  absl::Status ParseItem(int depth, ClassParts* parts) {
    const std::size_t start = pos_;
    if (pattern_.substr(pos_, 2) == "[:") {
      if (const std::size_t end = pattern_.find(":]", pos_); end != absl::string_view::npos) {
        absl::string_view name = pattern_.substr(pos_ + 2, end - pos_ - 2);
        const bool negated = !name.empty() && name[0] == '^';
        pos_ = end + 2;
        name.remove_prefix(negated ? 1 : 0);
        return AddProperty(name == "punct" ? kPosixPunctuation : name, negated, parts);
      }
    }
    if (pattern_[pos_] == '[') {
      COMOE_ASSIGN_OR_RETURN(std::string nested, Parse(depth + 1));
      parts->sets.push_back(std::move(nested));
      return absl::OkStatus();
    }
    if (pattern_[pos_] == '\\') {
      bool is_set = false;
      COMOE_RETURN_IF_ERROR(ParseSetEscape(parts, &is_set));
      if (is_set) {
        return absl::OkStatus();
      }
    }
    COMOE_ASSIGN_OR_RETURN(const char32_t low, ParseCharacter());
    const bool is_range = pos_ + 1 < pattern_.size() && pattern_[pos_] == '-' && pattern_[pos_ + 1] != ']' &&
                          pattern_.substr(pos_ + 1, 2) != "&&";
    if (!is_range) {
      parts->items += QuoteForRegex(low);
      return absl::OkStatus();
    }
    ++pos_;
    if (pattern_[pos_] == '[') {
      return Malformed(start, "a range of the character class ends in a class");
    }
    COMOE_ASSIGN_OR_RETURN(const char32_t high, ParseCharacter());
    if (high < low) {
      return Malformed(start, "a range of the character class is empty");
    }
    absl::StrAppend(&parts->items, QuoteForRegex(low), "-", QuoteForRegex(high));
    return absl::OkStatus();
  }

  // \s, \W, \p{..}: a set, not a character.
  absl::Status ParseSetEscape(ClassParts* parts, bool* is_set) {
    const char letter = pos_ + 1 < pattern_.size() ? pattern_[pos_ + 1] : '\0';
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(letter));
    const bool negated = letter != lower;
    *is_set = true;
    switch (lower) {
      case 's':
        pos_ += 2;
        return AddProperty("space", negated, parts);
      case 'd':
        pos_ += 2;
        return AddProperty("digit", negated, parts);
      case 'w':
        pos_ += 2;
        return AddProperty("word", negated, parts);
      case 'h':
        pos_ += 2;
        return AddProperty("xdigit", negated, parts);
      case 'p': {
        const std::size_t end = pattern_.find('}', pos_);
        if (pattern_.substr(pos_ + 2, 1) != "{" || end == absl::string_view::npos) {
          return Malformed(pos_, "\\p without {name}");
        }
        absl::string_view name = pattern_.substr(pos_ + 3, end - pos_ - 3);
        const bool caret = !name.empty() && name[0] == '^';
        pos_ = end + 1;
        return AddProperty(caret ? name.substr(1) : name, negated != caret, parts);
      }
      default:
        *is_set = false;
        return absl::OkStatus();
    }
  }

  absl::Status AddProperty(absl::string_view name, bool negated, ClassParts* parts) {
    COMOE_ASSIGN_OR_RETURN(PropertySet set, TranslateProperty(name, negated));
    if (set.fits_in_class) {
      parts->items += set.text;
    } else {
      parts->sets.push_back(std::move(set.text));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<char32_t> ParseCharacter() {
    if (pattern_[pos_] != '\\') {
      return NextCodePoint(pattern_, &pos_);
    }
    const std::size_t start = pos_++;
    if (pattern_.substr(pos_, 1) == "b") {
      ++pos_;
      return char32_t{8};
    }
    absl::StatusOr<char32_t> c = ParseCharacterEscape(pattern_, &pos_);
    if (absl::IsNotFound(c.status())) {
      return absl::UnimplementedError(absl::StrCat("regular expression, byte ", start, ": the escape \\",
                                                   pattern_.substr(pos_, 1),
                                                   " in a character class is not supported"));
    }
    return c;
  }

  absl::string_view pattern_;
  std::size_t pos_;
};

}  // namespace

absl::StatusOr<std::string> TranslateClass(absl::string_view pattern, std::size_t* pos) {
  ClassParser parser(pattern, *pos);
  COMOE_ASSIGN_OR_RETURN(std::string out, parser.Parse(0));
  *pos = parser.pos();
  return out;
}

absl::StatusOr<char32_t> ParseCharacterEscape(absl::string_view pattern, std::size_t* pos) {
  const std::size_t start = *pos;
  if (start >= pattern.size()) {
    return Malformed(start, "the pattern ends in a backslash");
  }
  const char letter = pattern[start];
  const auto hex = [&](std::size_t at, std::size_t digits) -> absl::StatusOr<char32_t> {
    std::uint32_t value = 0;
    if (at + digits > pattern.size() || digits == 0 || digits > 8 ||
        !absl::SimpleHexAtoi(pattern.substr(at, digits), &value) || value > 0x10FFFF ||
        (value >= 0xD800 && value < 0xE000) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(pattern[at]))) {
      return Malformed(start, "the escape names no code point");
    }
    return static_cast<char32_t>(value);
  };
  constexpr absl::string_view kLetters = "ntrfave0";
  constexpr char kValues[] = {'\n', '\t', '\r', '\f', '\a', '\v', '\x1b', '\0'};
  if (const std::size_t at = kLetters.find(letter); at != absl::string_view::npos) {
    if (letter == '0' && start + 1 < pattern.size() &&
        absl::ascii_isdigit(static_cast<unsigned char>(pattern[start + 1]))) {
      return Malformed(start, "octal escapes are not supported; write \\x{..}");
    }
    *pos = start + 1;
    return static_cast<char32_t>(kValues[at]);
  }
  if (letter == 'u') {
    *pos = start + 5;
    return hex(start + 1, 4);
  }
  if (letter == 'x') {
    if (pattern.substr(start + 1, 1) == "{") {
      const std::size_t end = pattern.find('}', start);
      if (end == absl::string_view::npos) {
        return Malformed(start, "\\x{ without }");
      }
      *pos = end + 1;
      return hex(start + 2, end - start - 2);
    }
    *pos = start + 3;
    absl::StatusOr<char32_t> c = hex(start + 1, 2);
    if (c.ok() && *c >= 0x80) {  // Oniguruma takes it for one byte of UTF-8
      return Malformed(start, "\\x with two digits above 7F; write \\x{..}");
    }
    return c;
  }
  if (absl::ascii_isalnum(static_cast<unsigned char>(letter))) {
    return absl::NotFoundError("not a character");
  }
  *pos = start;
  return NextCodePoint(pattern, pos);
}

std::string QuoteForRegex(char32_t c) {
  std::string out;
  if (c < 0x20 || c == 0x7F) {
    return absl::StrCat("\\x{", absl::Hex(static_cast<std::uint32_t>(c)), "}");
  }
  if (c < 0x80 && absl::ascii_ispunct(static_cast<unsigned char>(c))) {
    out.push_back('\\');
  }
  AppendUtf8(c, &out);
  return out;
}

}  // namespace comoe::tokenizer
