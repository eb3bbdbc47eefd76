#include "engine/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/unicode_normalize.h"
#include "engine/tokenizer/utf8.h"

namespace comoe::tokenizer {
namespace {

TEST(Utf8Test, ScanFindsWhereValidTextEnds) {
  struct Case {
    absl::string_view text;
    std::size_t valid, bad;
    bool incomplete;
  };
  const Case cases[] = {
      {"", 0, 0, false},
      {"abcdefghijk", 11, 0, false},
      {"a\xC3\xA9", 3, 0, false},
      {"a\xC3", 1, 1, true},
      {"a\xE6\xBC", 1, 2, true},
      {"\xF0\x9F\x98", 0, 3, true},
      {"\xE6\xBC"
       "a",
       0, 2, false},
      {"\xC0\x80", 0, 1, false},          // overlong
      {"\xE0\x80\x80", 0, 1, false},      // overlong
      {"\xED\xA0\x80", 0, 1, false},      // surrogate
      {"\xF4\x90\x80\x80", 0, 1, false},  // above U+10FFFF
      {"\x80", 0, 1, false},
      {"abcdefgh\xFF", 8, 1, false},
  };
  for (const Case& test : cases) {
    const Utf8Scan scan = ScanUtf8(test.text);
    EXPECT_EQ(scan.valid_bytes, test.valid) << test.text;
    EXPECT_EQ(scan.bad_bytes, test.bad) << test.text;
    EXPECT_EQ(scan.incomplete, test.incomplete) << test.text;
  }
}

TEST(Utf8Test, EveryCodePointSurvivesTheRoundTrip) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = ToUtf8(c);
    ASSERT_TRUE(IsValidUtf8(text));
    ASSERT_EQ(Utf8Length(text[0]), text.size());
    std::size_t pos = 0;
    ASSERT_EQ(NextCodePoint(text, &pos), c);
    ASSERT_EQ(pos, text.size());
    std::size_t begin = 1;
    ASSERT_EQ(PreviousCodePoint(text, text.size(), &begin), c);
    ASSERT_EQ(begin, 0u);
  }
}

TEST(ByteAlphabetTest, IsABijection) {
  std::string all;
  std::string token;
  for (int byte = 0; byte < 256; ++byte) {
    all.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    token += std::string(ByteLevelCharacter(static_cast<std::uint8_t>(byte)));
  }
  EXPECT_EQ(ByteLevelBytes(token), all);
  EXPECT_EQ(ByteLevelCharacter(' '), "Ġ");
  EXPECT_EQ(ByteLevelCharacter('\n'), "Ċ");
  EXPECT_EQ(ByteLevelBytes("a b"), std::nullopt);  // a space stands for itself nowhere
  EXPECT_EQ(ByteLevelBytes("漢"), std::nullopt);
}

TEST(UnicodeTest, Properties) {
  EXPECT_TRUE(IsWhitespace(0x3000) && IsWhitespace(0x85) && IsWhitespace('\v'));
  EXPECT_FALSE(IsWhitespace(0x200B) || IsWhitespace(0x180E));
  EXPECT_TRUE(IsNumeric(0xBD) && IsNumeric(0x2167) && IsNumeric(0x0663));
  EXPECT_TRUE(IsPunctuation('$') && IsPunctuation(0x3002) && IsPunctuation('_'));
  EXPECT_FALSE(IsPunctuation(0x20AC));
  EXPECT_TRUE(IsMark(0x301) && !IsMark('a'));
  EXPECT_TRUE(IsWordCharacter('_') && IsWordCharacter(0x24B6) && IsWordCharacter(0x200D) &&
              !IsWordCharacter('-'));
  std::string lower;
  AppendLowercase(0x130, &lower);
  EXPECT_EQ(lower, "i\xCC\x87");
}

std::string Normalized(NormalForm form, absl::string_view text) {
  AlignedText aligned = AlignedText::FromOriginal(text, 0, false);
  NormalizeUnicode(form, &aligned);
  return std::string(aligned.view());
}

TEST(NormalizeTest, Forms) {
  EXPECT_EQ(Normalized(NormalForm::kNfd, "é"), "e\xCC\x81");
  EXPECT_EQ(Normalized(NormalForm::kNfc, "e\xCC\x81"), "é");
  EXPECT_EQ(Normalized(NormalForm::kNfc, "s\xCC\x87\xCC\xA3"), "ṩ");  // marks are put in order first
  EXPECT_EQ(Normalized(NormalForm::kNfc, "\u1112\u1161\u11AB"), "한");
  EXPECT_EQ(Normalized(NormalForm::kNfd, "한"), "\u1112\u1161\u11AB");
  EXPECT_EQ(Normalized(NormalForm::kNfc, "\u2126"), "Ω");             // a singleton: Ohm sign
  EXPECT_EQ(Normalized(NormalForm::kNfc, "\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(Normalized(NormalForm::kNfkc, "ﬁ①"), "fi1");
  EXPECT_EQ(Normalized(NormalForm::kNfkd, "ｶﾞ"), "カ\u3099");
  EXPECT_EQ(Normalized(NormalForm::kNfkc, "\uFDFA"), "صلى الله عليه وسلم");
}

TEST(NormalizeTest, KeepsTrackOfWhereThingsCameFrom) {
  AlignedText text = AlignedText::FromOriginal("xe\xCC\x81ﬁ", 10, true);
  NormalizeUnicode(NormalForm::kNfkc, &text);
  ASSERT_EQ(text.view(), "xéfi");
  EXPECT_EQ(text.span(0), (ByteSpan{10, 11}));
  EXPECT_EQ(text.span(1), (ByteSpan{11, 14}));
  EXPECT_EQ(text.span(3), (ByteSpan{14, 17}));
  EXPECT_EQ(text.span(4), (ByteSpan{14, 17}));
}

}  // namespace
}  // namespace comoe::tokenizer
