// Patterns in tokenizer.json are written for Oniguruma (Ruby syntax, Unicode). This rewrites one so that
// PCRE2 finds the same matches, or refuses it by naming the construct.
//
// What differs, and is rewritten: \s \w \d \b and their complements (PCRE2's Unicode \s has U+180E, its \w
// lacks marks), \h (a hexadecimal digit), \v (one character), \uHHHH, \p{long names}, \p{Script} (Oniguruma
// means the script, PCRE2 the script extensions), POSIX brackets, nested classes and && (class intersection),
// (?m) (dot matches newline), (?i) in mid-pattern, X{n,m}+ (not possessive), X{n}? (optional), X{,m}, stacked
// quantifiers. ^ and $ match at lines in both when PCRE2 is told MULTILINE with newline LF.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace comoe::tokenizer {

// INVALID_ARGUMENT: not a pattern; UNIMPLEMENTED: one that is not supported. Both tell the byte where.
absl::StatusOr<std::string> TranslateRegex(absl::string_view pattern);

// What \p{name} of Oniguruma matches: part of the inside of a PCRE2 class, or a whole class when only that
// can say it (the complement of several properties together). UNIMPLEMENTED for names that have no equal.
struct PropertySet {
  std::string text;
  bool fits_in_class = true;
};
absl::StatusOr<PropertySet> TranslateProperty(absl::string_view name, bool negated);
// As a name: the POSIX bracket [:punct:], which has symbols; \p{Punct} has none.
inline constexpr absl::string_view kPosixPunctuation = "posixpunct";

// Parses the class whose '[' is at `*pos` and moves behind its ']'; the result matches exactly one code
// point.
absl::StatusOr<std::string> TranslateClass(absl::string_view pattern, std::size_t* pos);

// The code point that an escape such as \n \x{41} \u0041 stands for: `*pos` is behind the backslash, and
// moves behind the escape. NOT_FOUND when it is no such escape.
absl::StatusOr<char32_t> ParseCharacterEscape(absl::string_view pattern, std::size_t* pos);

// `c` as a literal, for use inside and outside a class.
std::string QuoteForRegex(char32_t c);

// The inside of a class with Oniguruma's \w, as it is inside a class and outside of one, where it also has
// the numbers of Latin-1 that are no decimal digits.
inline constexpr absl::string_view kWordItemsInClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
inline constexpr absl::string_view kWordItems =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

}  // namespace comoe::tokenizer
