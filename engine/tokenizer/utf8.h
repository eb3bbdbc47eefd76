// UTF-8: checking, walking, writing, and finding what is broken. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace comoe::tokenizer {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr absl::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// Where valid UTF-8 ends. `valid_bytes` is the longest prefix of whole, valid code points. When it is not the
// whole text, `bad_bytes` (1 to 3) is the longest piece behind it that is the beginning of a code point (or
// one byte that begins none), and `incomplete` tells that more bytes behind the text could still complete it.
struct Utf8Scan {
  std::size_t valid_bytes = 0;
  std::size_t bad_bytes = 0;
  bool incomplete = false;
};
Utf8Scan ScanUtf8(absl::string_view text);

inline bool IsValidUtf8(absl::string_view text) { return ScanUtf8(text).valid_bytes == text.size(); }

// Bytes of the code point that begins with `lead`, in valid UTF-8.
inline std::size_t Utf8Length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}
inline bool IsUtf8Continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The code point at `*pos`, which moves behind it. Precondition: valid UTF-8, *pos at a code point's first
// byte.
char32_t NextCodePoint(absl::string_view text, std::size_t* pos);
// The code point that ends at `end` (> 0); `*begin` gets its first byte. Precondition as above.
char32_t PreviousCodePoint(absl::string_view text, std::size_t end, std::size_t* begin);

// `c` is a Unicode scalar value.
void AppendUtf8(char32_t c, std::string* out);
std::string ToUtf8(char32_t c);
std::size_t CountCodePoints(absl::string_view text);

}  // namespace comoe::tokenizer
