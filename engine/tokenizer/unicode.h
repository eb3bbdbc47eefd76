// Properties of code points, as the tokenizer components define them. Pure functions over Unicode 15
// tables, except where the reference's older ones say otherwise (unicode_reference.h).
#pragma once

#include <string>

namespace comoe::tokenizer {

// White_Space: what `\s` means and what strip removes.
bool IsWhitespace(char32_t c);
// General categories Nd, Nl, No.
bool IsNumeric(char32_t c);
// General categories P*, and the ASCII symbols $+<=>^`|~.
bool IsPunctuation(char32_t c);
// General categories M*.
bool IsMark(char32_t c);
// What `\w` means: alphabetic, marks, decimal digits, connector punctuation, joiners.
bool IsWordCharacter(char32_t c);
// Appends the full lower-case mapping (one code point, two for U+0130).
void AppendLowercase(char32_t c, std::string* out);

}  // namespace comoe::tokenizer
