#include "engine/tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/normalizer.h"
#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

// The pieces of `text`, which begins at byte `offset` of the original.
Strings Pieces(const Json& config, absl::string_view text, std::size_t offset = 0) {
  const auto pre_tokenizer = ParsePreTokenizer(JsonField(&config, "pre_tokenizer"));
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  PreTokenized out(true);
  EXPECT_TRUE(out.Append(AlignedText::FromOriginal(text, offset, true), 0, text.size(), kNoToken).ok());
  EXPECT_TRUE((*pre_tokenizer)->Apply(&out).ok());
  Strings pieces;
  for (const Piece& piece : out.pieces()) {
    pieces.emplace_back(out.text().view(piece.begin, piece.end));
  }
  return pieces;
}

Json Split(const std::string& kind, const std::string& pattern, const std::string& behavior,
           bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{kind, pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

TEST(SplitTest, Behaviors) {
  constexpr absl::string_view kText = "the-final--countdown";
  const auto pieces = [&](const std::string& behavior) {
    return Pieces(Split("String", "-", behavior), kText);
  };
  EXPECT_EQ(pieces("Removed"), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(pieces("Isolated"), (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces("MergedWithPrevious"), (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces("MergedWithNext"), (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces("Contiguous"), (Strings{"the", "-", "final", "--", "countdown"}));
}

TEST(SplitTest, InvertExchangesMatchesAndTheRest) {
  EXPECT_EQ(Pieces(Split("Regex", "\\w+", "Removed", true), "Hey, you!"), (Strings{"Hey", "you"}));
  EXPECT_EQ(Pieces(Split("Regex", "\\w+", "Isolated", true), "Hey, you!"),
            (Strings{"Hey", ", ", "you", "!"}));
}

TEST(SplitTest, EachPieceIsAnchoredOnItsOwn) {
  const Json config = {
      {"type", "Sequence"},
      {"pretokenizers", {Split("String", "-", "Removed"), Split("Regex", "^a", "Isolated")}}};
  EXPECT_EQ(Pieces(config, "ab-ac"), (Strings{"a", "b", "a", "c"}));
}

TEST(ByteLevelTest, PatternAndPrefix) {
  const Json gpt2 = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  EXPECT_EQ(Pieces(gpt2, "Hello  you're"), (Strings{"ĠHello", "Ġ", "Ġyou", "'re"}));
  const Json plain = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  EXPECT_EQ(Pieces(plain, "é x"), (Strings{"Ã©Ġx"}));
}

TEST(MetaspaceTest, PrependSchemes) {
  const auto config = [](const std::string& scheme, bool split) {
    return Json{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
  };
  EXPECT_EQ(Pieces(config("always", true), "Hey  you"), (Strings{"▁Hey", "▁", "▁you"}));
  EXPECT_EQ(Pieces(config("always", false), "Hey you", 5), (Strings{"▁Hey▁you"}));
  EXPECT_EQ(Pieces(config("first", false), "Hey you", 0), (Strings{"▁Hey▁you"}));
  EXPECT_EQ(Pieces(config("first", false), "Hey you", 5), (Strings{"Hey▁you"}));
  EXPECT_EQ(Pieces(config("never", true), "Hey you"), (Strings{"Hey", "▁you"}));
  EXPECT_EQ(Pieces(config("always", true), " x"), (Strings{"▁x"}));
  // The older spelling.
  EXPECT_EQ(Pieces({{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", false}}, "a b"),
            (Strings{"a", "▁b"}));
  EXPECT_EQ(Pieces({{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", true}}, "a"),
            (Strings{"▁a"}));
}

TEST(CharacterSplitTest, Classes) {
  EXPECT_EQ(Pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12½"), (Strings{"a", "1", "2", "½"}));
  EXPECT_EQ(Pieces({{"type", "Digits"}, {"individual_digits", false}}, "a12½b"), (Strings{"a", "12½", "b"}));
  EXPECT_EQ(Pieces({{"type", "Punctuation"}}, "a..b"), (Strings{"a", ".", ".", "b"}));
  EXPECT_EQ(Pieces({{"type", "Punctuation"}, {"behavior", "MergedWithPrevious"}}, "a.b"),
            (Strings{"a.", "b"}));
  EXPECT_EQ(Pieces({{"type", "Whitespace"}}, "Hey, you_2  ...é!"),
            (Strings{"Hey", ",", "you_2", "...", "é", "!"}));
  EXPECT_EQ(Pieces({{"type", "WhitespaceSplit"}}, "Hey,\u3000you "), (Strings{"Hey,", "you"}));
  EXPECT_EQ(Pieces({{"type", "BertPreTokenizer"}}, "Hey friend!  ok"), (Strings{"Hey", "friend", "!", "ok"}));
  EXPECT_EQ(Pieces({{"type", "CharDelimiterSplit"}, {"delimiter", "é"}}, "aébéé"), (Strings{"a", "b"}));
  EXPECT_EQ(Pieces({{"type", "FixedLength"}, {"length", 2}}, "a漢bcd"), (Strings{"a漢", "bc", "d"}));
}

std::string Normalized(const Json& config, absl::string_view text) {
  const auto normalizer = ParseNormalizer(JsonField(&config, "normalizer"));
  EXPECT_TRUE(normalizer.ok()) << normalizer.status();
  AlignedText aligned = AlignedText::FromOriginal(text, 0, false);
  EXPECT_TRUE((*normalizer)->Normalize(&aligned).ok());
  return std::string(aligned.view());
}

TEST(NormalizerTest, EachDoesWhatItsNameSays) {
  EXPECT_EQ(
      Normalized({{"type", "Sequence"}, {"normalizers", {{{"type", "NFD"}}, {{"type", "StripAccents"}}}}},
                 "éñ"),
      "en");
  EXPECT_EQ(Normalized({{"type", "Lowercase"}}, "ÀİΣ"), "ài\u0307σ");
  EXPECT_EQ(Normalized({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, " \u3000a "), "a ");
  EXPECT_EQ(Normalized({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, " a \n"), " a");
  EXPECT_EQ(Normalized({{"type", "Prepend"}, {"prepend", "▁"}}, "a"), "▁a");
  EXPECT_EQ(Normalized({{"type", "Prepend"}, {"prepend", "▁"}}, ""), "");
  EXPECT_EQ(Normalized({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}, "a b"),
            "a▁b");
  EXPECT_EQ(Normalized({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}}, "a   b"),
            "a b");
  EXPECT_EQ(Normalized({{"type", "ByteLevel"}}, "é "), "Ã©Ġ");
  EXPECT_EQ(Normalized({{"type", "Nmt"}}, "a\u0001\tb\u200B"), "a b ");
}

TEST(NormalizerTest, ReplacementsCannotGrowWithoutEnd) {
  Json parts = Json::array();
  for (int i = 0; i < 40; ++i) {
    parts.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}});
  }
  const Json config = {{"type", "Sequence"}, {"normalizers", parts}};
  const auto normalizer = ParseNormalizer(JsonField(&config, "normalizer"));
  ASSERT_TRUE(normalizer.ok());
  AlignedText text = AlignedText::FromOriginal("a", 0, false);
  EXPECT_EQ((*normalizer)->Normalize(&text).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace comoe::tokenizer
