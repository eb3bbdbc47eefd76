#include "engine/tokenizer/decoder.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/utf8.h"
#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

// What each token brings out, then what Finish does.
Strings Steps(const Json& config, const Strings& tokens) {
  const absl::StatusOr<Decoder> decoder = Decoder::Parse(JsonField(&config, "decoder"));
  EXPECT_TRUE(decoder.ok()) << decoder.status();
  const auto pipeline = decoder->NewPipeline();
  Strings steps;
  for (const std::string& token : tokens) {
    EXPECT_TRUE(pipeline->Push(token).ok());
    steps.push_back(pipeline->TakeText());
    EXPECT_TRUE(IsValidUtf8(steps.back()));
  }
  EXPECT_TRUE(pipeline->Finish().ok());
  steps.push_back(pipeline->TakeText());
  return steps;
}

const Json kLlama = Json::parse(R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");

TEST(DecoderTest, ByteLevelHoldsBackHalfCharacters) {
  const Json config = {{"type", "ByteLevel"}};
  EXPECT_EQ(Steps(config, {"ĠHe", "Ã", "©", "llo"}), (Strings{" He", "", "é", "llo", ""}));
  EXPECT_EQ(Steps(config, {"ðŁ", "ĺ"}), (Strings{"", "", "\uFFFD"}));  // one for what was begun
  EXPECT_EQ(Steps(config, {"Ã", "a"}), (Strings{"", "\uFFFDa", ""}));
  EXPECT_EQ(Steps(config, {"©©"}), (Strings{"\uFFFD\uFFFD", ""}));
  EXPECT_EQ(Steps(config, {"<｜x｜>"}), (Strings{"<｜x｜>", ""}));  // not of the alphabet: as it is
}

TEST(DecoderTest, ByteFallbackGroups) {
  const Json config = {{"type", "ByteFallback"}};
  EXPECT_EQ(Steps(config, {"a", "<0xE6>", "<0xBC>", "<0xA2>", "b"}), (Strings{"a", "", "", "", "漢b", ""}));
  EXPECT_EQ(Steps(config, {"<0xE6>", "<0xBC>"}), (Strings{"", "", "\uFFFD\uFFFD"}));
  // A good character in a broken group is broken with it; once that is known there is nothing to wait for.
  EXPECT_EQ(Steps(config, {"<0xC3>", "<0xA9>", "<0xFF>", "<0x41>", "b"}),
            (Strings{"", "", "\uFFFD\uFFFD\uFFFD", "\uFFFD", "b", ""}));
  EXPECT_EQ(Steps(config, {"<0x4>", "<0xZZ>", "<0x411>"}), (Strings{"<0x4>", "<0xZZ>", "<0x411>", ""}));
}

TEST(DecoderTest, OnlyTheTextsFirstSpaceIsStripped) {
  EXPECT_EQ(Steps(kLlama, {"▁Hi", "▁you", "▁", "▁"}), (Strings{"Hi", " you", " ", " ", ""}));
  EXPECT_EQ(Steps(kLlama, {"▁▁x"}), (Strings{" x", ""}));
}

TEST(DecoderTest, StripHoldsBackWhatMayBeTheEnd) {
  const Json config = {
      {"type", "Sequence"},
      {"decoders", {{{"type", "Fuse"}}, {{"type", "Strip"}, {"content", "x"}, {"start", 0}, {"stop", 2}}}}};
  EXPECT_EQ(Steps(config, {"axx", "x", "b", "x", "xx"}), (Strings{"a", "x", "xxb", "", "x", ""}));
}

TEST(DecoderTest, ReplaceAcrossFusedTokens) {
  const Json config = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Fuse"}}, {{"type", "Replace"}, {"pattern", {{"String", "aab"}}}, {"content", "-"}}}}};
  EXPECT_EQ(Steps(config, {"a", "a", "a", "b", "aa"}), (Strings{"", "", "a", "-", "", "aa"}));
  EXPECT_EQ(
      Steps({{"type", "Replace"}, {"pattern", {{"String", "aab"}}}, {"content", "-"}}, {"aa", "b", "aab"}),
      (Strings{"aa", "b", "-", ""}));
  EXPECT_EQ(Steps({{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", "-"}}, {"baac", "a"}),
            (Strings{"b-c", "-", ""}));
}

TEST(DecoderTest, Metaspace) {
  const auto config = [](const std::string& scheme) {
    return Json{{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}};
  };
  EXPECT_EQ(Steps(config("always"), {"▁Hey", "▁you"}), (Strings{"Hey", " you", ""}));
  EXPECT_EQ(Steps(config("never"), {"▁Hey", "▁you"}), (Strings{" Hey", " you", ""}));
}

TEST(DecoderTest, WordDecoders) {
  EXPECT_EQ(Steps({{"type", "BPEDecoder"}, {"suffix", "</w>"}}, {"My</w>", "na", "me</w>"}),
            (Strings{"", "My ", "na", "me"}));
  EXPECT_EQ(
      Steps({{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}, {"I", "##x", "do", "n't", "."}),
      (Strings{"I", "x", " do", "n't", ".", ""}));
  EXPECT_EQ(Steps(nullptr, {"a", "b"}), (Strings{"a", " b", ""}));
}

TEST(DecoderTest, ReplacementsCannotGrowWithoutEnd) {
  Json parts = Json::array();
  for (int i = 0; i < 40; ++i) {
    parts.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}});
  }
  const Json config = {{"type", "Sequence"}, {"decoders", parts}};
  const absl::StatusOr<Decoder> decoder = Decoder::Parse(JsonField(&config, "decoder"));
  ASSERT_TRUE(decoder.ok());
  EXPECT_EQ(decoder->NewPipeline()->Push("a").code(), absl::StatusCode::kResourceExhausted);
}

TEST(StreamDecoderTest, AnUnknownIdIsAsIfItHadNotBeenPushed) {
  Json config = SmallTokenizer();
  config["decoder"] = {{"type", "Fuse"}};
  const std::unique_ptr<Tokenizer> tokenizer = Make(config);
  StreamDecoder stream(tokenizer.get(), true);
  EXPECT_EQ(*stream.Push(0), "a");
  EXPECT_EQ(stream.Push(99).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Push(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*stream.Push(1), "b");
  EXPECT_EQ(*stream.Flush(), "");
}

}  // namespace
}  // namespace comoe::tokenizer
