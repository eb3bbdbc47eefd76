#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<base::TokenId>;

Ids Encode(const Json& config, absl::string_view text) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(config);
  if (tokenizer == nullptr) return {};
  const auto ids = tokenizer->Encode(text, true);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids{};
}

TEST(BpeModelTest, MergesTheBestRankFirst) {
  Json config = SmallTokenizer();
  EXPECT_EQ(Encode(config, "abcab"), (Ids{4, 3}));
  config["model"]["vocab"]["bc"] = 5;
  config["model"]["merges"] = Json::parse(R"([["b", "c"], ["a", "b"]])");  // now b+c comes before a+b
  EXPECT_EQ(Encode(config, "abcab"), (Ids{0, 5, 3}));
}

TEST(BpeModelTest, MergesTheLeftmostOfEqualRank) {
  Json config = SmallTokenizer();
  config["model"]["vocab"] = {{"a", 0}, {"aa", 1}};
  config["model"]["merges"] = Json::parse(R"([["a", "a"]])");
  EXPECT_EQ(Encode(config, "aaaaa"), (Ids{1, 1, 0}));
}

TEST(BpeModelTest, ReadsBothSpellingsOfMerges) {
  Json config = SmallTokenizer();
  config["model"]["merges"] = {"#version: 0.2", "a b", "ab c"};
  EXPECT_EQ(Encode(config, "abc"), (Ids{4}));
  config["model"]["vocab"]["a b"] = 5;
  config["model"]["vocab"][" "] = 6;
  config["model"]["vocab"]["a "] = 7;
  config["model"]["merges"] =
      Json::parse(R"([["a", " "], ["a ", "b"]])");  // tokens with spaces, which only pairs can write
  EXPECT_EQ(Encode(config, "a b"), (Ids{5}));
}

TEST(BpeModelTest, IgnoreMergesTakesWholePieces) {
  Json config = SmallTokenizer();
  config["model"]["vocab"]["cab"] = 5;  // no merge makes it
  EXPECT_EQ(Encode(config, "cab"), (Ids{2, 3}));
  config["model"]["ignore_merges"] = true;
  EXPECT_EQ(Encode(config, "cab"), (Ids{5}));
}

TEST(BpeModelTest, UnknownCharacters) {
  Json config = SmallTokenizer();
  EXPECT_EQ(Encode(config, "axxb"), (Ids{3}));  // left out, so what stood around them meets
  config["model"]["unk_token"] = "<unk>";
  config["model"]["vocab"]["<unk>"] = 5;
  EXPECT_EQ(Encode(config, "axxb"), (Ids{0, 5, 5, 1}));
  config["model"]["fuse_unk"] = true;
  EXPECT_EQ(Encode(config, "axxb"), (Ids{0, 5, 1}));
  config["model"]["byte_fallback"] = true;
  config["model"]["vocab"]["<0xC3>"] = 6;
  EXPECT_EQ(Encode(config, "aé"), (Ids{0, 5}));  // not all of its bytes have a token
  config["model"]["vocab"]["<0xA9>"] = 7;
  EXPECT_EQ(Encode(config, "aé"), (Ids{0, 6, 7}));
}

TEST(BpeModelTest, UnknownTokenThatIsMissingIsAnErrorWhenItIsNeeded) {
  Json config = SmallTokenizer();
  config["model"]["unk_token"] = "<unk>";
  const std::unique_ptr<Tokenizer> tokenizer = Make(config);
  EXPECT_TRUE(tokenizer->Encode("abc", true).ok());
  EXPECT_EQ(tokenizer->Encode("x", true).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(BpeModelTest, PrefixAndSuffix) {
  Json config = SmallTokenizer();
  config["model"]["continuing_subword_prefix"] = "##";
  config["model"]["end_of_word_suffix"] = "</w>";
  config["model"]["vocab"] = {{"a", 0}, {"##b", 1}, {"##c</w>", 2}, {"ab", 3}, {"abc</w>", 4}, {"a</w>", 5}};
  config["model"]["merges"] = Json::parse(R"([["a", "##b"], ["ab", "##c</w>"]])");
  EXPECT_EQ(Encode(config, "abc"), (Ids{4}));
  EXPECT_EQ(Encode(config, "a"), (Ids{5}));
  EXPECT_EQ(Encode(config, "abbc"), (Ids{3, 1, 2}));
}

TEST(BpeModelTest, LongPieces) {
  const Json config = SmallTokenizer();
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "abc";
  const Ids ids = Encode(config, text);
  ASSERT_EQ(ids.size(), 100'000u);
  EXPECT_EQ(ids.front(), 4);
  EXPECT_EQ(ids.back(), 4);
}

}  // namespace
}  // namespace comoe::tokenizer
