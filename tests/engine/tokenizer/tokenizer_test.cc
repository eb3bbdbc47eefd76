#include "engine/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<base::TokenId>;

Json WithAdded(Json config, const std::vector<Json>& tokens) {
  config["added_tokens"] = tokens;
  return config;
}

Json Added(int id, const std::string& content, const std::vector<std::string>& flags) {
  Json token = AddedTokenJson(id, content);
  for (const std::string& name : flags) {
    token[name] = true;
  }
  return token;
}

Ids Encode(const Json& config, absl::string_view text) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(config);
  const auto ids = tokenizer->Encode(text, true);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids{};
}

TEST(AddedTokensTest, LongestOfTheLeftmost) {
  const Json config =
      WithAdded(SmallTokenizer(), {Added(5, "<x", {}), Added(6, "<x>", {}), Added(7, "x>a", {})});
  EXPECT_EQ(Encode(config, "a<x>ab"), (Ids{0, 6, 3}));
  EXPECT_EQ(Encode(config, "<xb"), (Ids{5, 1}));
  EXPECT_EQ(Encode(config, "x>ab"), (Ids{7, 1}));
}

TEST(AddedTokensTest, ATokenOfTheVocabularyKeepsItsId) {
  const Json config = WithAdded(SmallTokenizer(), {Added(2, "c", {"special"}), Added(5, "new", {})});
  EXPECT_EQ(Encode(config, "abc"), (Ids{3, 2}));  // cut out before ab+c can merge
  const std::unique_ptr<Tokenizer> tokenizer = Make(config);
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  EXPECT_TRUE(tokenizer->IsSpecial(2));
  EXPECT_FALSE(tokenizer->IsSpecial(5));
  EXPECT_FALSE(tokenizer->IsSpecial(77));
}

TEST(AddedTokensTest, SingleWord) {
  const Json config = WithAdded(SmallTokenizer(), {Added(5, "ab", {"single_word"})});
  EXPECT_EQ(LoadError(config).code(), absl::StatusCode::kInvalidArgument);  // "ab" has the id 3
  const Json right = WithAdded(SmallTokenizer(), {Added(3, "ab", {"single_word"}), Added(5, "-", {})});
  EXPECT_EQ(Encode(right, "ab-abc"), (Ids{3, 5, 4}));
  EXPECT_EQ(Encode(right, "ab"), (Ids{3}));
}

TEST(AddedTokensTest, StripsTakeWhiteSpace) {
  Json config = WithAdded(SmallTokenizer(), {Added(5, "<l>", {"lstrip"}), Added(6, "<r>", {"rstrip"})});
  config["model"]["unk_token"] = "c";  // so that white space shows
  EXPECT_EQ(Encode(config, "b \n<l> b"), (Ids{1, 5, 2, 1}));
  EXPECT_EQ(Encode(config, "b <r> \u3000b"), (Ids{1, 2, 6, 1}));
  EXPECT_EQ(Encode(config, "<r>  <l>"), (Ids{6, 5}));
}

TEST(AddedTokensTest, NormalizedTokensAreLookedForAfterNormalization) {
  Json config = WithAdded(SmallTokenizer(), {Added(5, "BAC", {"normalized"}), Added(6, "CAB", {})});
  config["normalizer"] = {{"type", "Lowercase"}};
  config["decoder"] = {{"type", "Fuse"}};
  EXPECT_EQ(Encode(config, "bacBaC"), (Ids{5, 5}));
  EXPECT_EQ(Encode(config, "cabCAB"), (Ids{2, 3, 6}));
  EXPECT_EQ(*Make(config)->Decode({5, 6}, false), "bacCAB");
  EXPECT_EQ(*Make(config)->IdToToken(5), "BAC");
}

TEST(PostProcessorTest, PutsSpecialTokensAround) {
  Json config = SmallTokenizer();
  const auto encode = [&config](bool add_special) { return *Make(config)->Encode("abc", add_special); };
  config["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"b", 1}}, {"cls", {"a", 0}}};
  EXPECT_EQ(encode(true), (Ids{0, 4, 1}));
  EXPECT_EQ(encode(false), (Ids{4}));
  config["post_processor"] = {{"type", "RobertaProcessing"},
                              {"sep", {"b", 1}},
                              {"cls", {"a", 0}},
                              {"trim_offsets", true},
                              {"add_prefix_space", false}};
  EXPECT_EQ(encode(true), (Ids{0, 4, 1}));
  config["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
      {"type": "TemplateProcessing", "pair": [],
       "single": [{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "special_tokens": {"X": {"id": "X", "ids": [2, 1], "tokens": ["c", "b"]}}}]})");
  EXPECT_EQ(encode(true), (Ids{2, 1, 4}));
  EXPECT_EQ(encode(false), (Ids{4}));
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8OrTooLong) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(SmallTokenizer());
  EXPECT_EQ(tokenizer->Encode("a\xFF", true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->Encode("\xED\xA0\x80", true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->Encode(std::string(kMaxEncodeBytes + 1, 'a'), true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*tokenizer->Encode("", true), Ids{});
  EXPECT_EQ(*tokenizer->Encode(std::string("a\0b", 3), true), (Ids{3}));
}

TEST(TokenizerTest, RefusesIdsThatNoTokenHas) {
  Json config = SmallTokenizer();
  config["model"]["vocab"]["z"] = 9;  // 5 to 8 are holes
  const std::unique_ptr<Tokenizer> tokenizer = Make(config);
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  for (const base::TokenId id : {-1, 5, 8, 10, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->Decode({id}, true).status().code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_EQ(tokenizer->IdToToken(id).status().code(), absl::StatusCode::kInvalidArgument) << id;
    EXPECT_EQ(tokenizer->TokenBytes(id), "") << id;
  }
}

TEST(TokenizerTest, TokenBytesAreWhatTheTokenStandsFor) {
  Json config = SmallTokenizer();
  config["model"]["vocab"] = {{"Ġa", 0}, {"Ã", 1}, {"▁a", 2}, {"<0xC3>", 3}};
  config["model"]["merges"] = Json::array();
  config["decoder"] = {{"type", "ByteLevel"}};
  EXPECT_EQ(Make(config)->TokenBytes(0), " a");
  EXPECT_EQ(Make(config)->TokenBytes(1), "\xC3");
  config["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]})");
  EXPECT_EQ(Make(config)->TokenBytes(2), " a");
  EXPECT_EQ(Make(config)->TokenBytes(3), "\xC3");
}

TEST(TokenizerTest, ManyThreadsMayShareIt) {
  const auto tokenizer = Tokenizer::Load(StyleFile("llama3_style", "tokenizer.json"));
  ASSERT_TRUE(tokenizer.ok());
  const Json goldens = ReadJson(StyleFile("llama3_style", "golden.json"));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (const Json& golden : goldens) {
        const auto ids = (*tokenizer)->Encode(golden["text"].get<std::string>(), true);
        wrong[i] += ids.ok() && Json(*ids) == golden["ids"] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TokenizerTest, LoadNamesTheFile) {
  const auto missing = Tokenizer::Load("/nonexistent/tokenizer.json");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("/nonexistent/tokenizer.json"), absl::string_view::npos);
}

}  // namespace
}  // namespace comoe::tokenizer
