#include "engine/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace comoe::tokenizer {
namespace {

unsigned char Byte(absl::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// What may follow a lead byte: how many bytes the code point has and the range of its second byte (the ranges
// keep out overlong forms, surrogates and values above U+10FFFF).
struct Lead {
  std::size_t length = 0;  // 0: begins no code point
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Scan ScanUtf8(absl::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    if (text.size() - i >= 8) {  // eight ASCII bytes at a time
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + i, 8);
      if ((word & 0x8080808080808080u) == 0) {
        i += 8;
        continue;
      }
    }
    const Lead lead = LeadOf(Byte(text, i));
    if (lead.length == 0) {
      return {i, 1, false};
    }
    std::size_t have = 1;
    while (have < lead.length && i + have < text.size()) {
      const unsigned char byte = Byte(text, i + have);
      const unsigned char low = have == 1 ? lead.low : 0x80;
      const unsigned char high = have == 1 ? lead.high : 0xBF;
      if (byte < low || byte > high) {
        return {i, have, false};
      }
      ++have;
    }
    if (have < lead.length) {
      return {i, have, true};
    }
    i += lead.length;
  }
  return {text.size(), 0, false};
}

char32_t NextCodePoint(absl::string_view text, std::size_t* pos) {
  const unsigned char lead = Byte(text, *pos);
  const std::size_t length = Utf8Length(text[*pos]);
  char32_t c = length == 1 ? lead : lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    c = (c << 6) | (Byte(text, *pos + i) & 0x3Fu);
  }
  *pos += length;
  return c;
}

char32_t PreviousCodePoint(absl::string_view text, std::size_t end, std::size_t* begin) {
  std::size_t i = end - 1;
  while (i > 0 && IsUtf8Continuation(text[i])) {
    --i;
  }
  *begin = i;
  return NextCodePoint(text, &i);
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [out](char32_t byte) {
    out->push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::string ToUtf8(char32_t c) {
  std::string out;
  AppendUtf8(c, &out);
  return out;
}

std::size_t CountCodePoints(absl::string_view text) {
  std::size_t count = 0;
  for (const char c : text) {
    count += IsUtf8Continuation(c) ? 0 : 1;
  }
  return count;
}

}  // namespace comoe::tokenizer
