// Broken and unsupported tokenizer.json: each is one error that names the field, and never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

struct Case {
  const char* what;
  std::function<void(Json&)> breaks;
  const char* message;  // part of it
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"no model", [](Json& j) { j.erase("model"); }, "\"model\" is missing"},
      {"model is a list", [](Json& j) { j["model"] = Json::array(); }, "model:"},
      {"version", [](Json& j) { j["version"] = "2.0"; }, "version: \"2.0\"", kUnsupported},
      {"version type", [](Json& j) { j["version"] = 1; }, "version: a string is expected"},
      {"truncation",
       [](Json& j) {
         j["truncation"] = {{"max_length", 5}};
       },
       "truncation: not supported", kUnsupported},
      {"padding",
       [](Json& j) {
         j["padding"] = {{"pad_id", 0}};
       },
       "padding: not supported", kUnsupported},
      {"Unigram",
       [](Json& j) {
         j["model"] = {{"type", "Unigram"}, {"vocab", Json::parse(R"([["a", -1.5]])")}, {"unk_id", 0}};
       },
       "model.type: \"Unigram\" is not supported; supported: BPE", kUnsupported},
      {"WordPiece", [](Json& j) { j["model"]["type"] = "WordPiece"; }, "model.type: \"WordPiece\"",
       kUnsupported},
      {"WordLevel", [](Json& j) { j["model"]["type"] = "WordLevel"; }, "model.type: \"WordLevel\"",
       kUnsupported},
      {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout", kUnsupported},
      {"no vocab", [](Json& j) { j["model"].erase("vocab"); }, "\"vocab\" is missing"},
      {"vocab is text", [](Json& j) { j["model"]["vocab"] = "a"; },
       "model.vocab: an object is expected, found string"},
      {"merges is an object", [](Json& j) { j["model"]["merges"] = Json::object(); },
       "model.merges: an array is expected, found object"},
      {"no merges", [](Json& j) { j["model"].erase("merges"); }, "\"merges\" is missing"},
      {"vocab id is text", [](Json& j) { j["model"]["vocab"]["a"] = "0"; },
       "model.vocab[\"a\"]: an id is expected"},
      {"vocab id is a fraction", [](Json& j) { j["model"]["vocab"]["a"] = 0.5; }, "model.vocab[\"a\"]"},
      {"vocab id is negative", [](Json& j) { j["model"]["vocab"]["a"] = -1; },
       "model.vocab[\"a\"]: the id -1"},
      {"vocab id is huge", [](Json& j) { j["model"]["vocab"]["a"] = 1u << 31; },
       "model.vocab[\"a\"]: the id 2147483648"},
      {"vocab id is enormous", [](Json& j) { j["model"]["vocab"]["a"] = UINT64_MAX; },
       "model.vocab[\"a\"]: the id"},
      {"vocab id is an object", [](Json& j) { j["model"]["vocab"]["a"] = Json::object(); },
       "model.vocab[\"a\"]"},
      {"two tokens with one id", [](Json& j) { j["model"]["vocab"]["b"] = 0; },
       "model.vocab[\"b\"]: the id 0 is also"},
      {"merge of unknown tokens",
       [](Json& j) {
         j["model"]["merges"][1] = {"ab", "q"};
       },
       "model.merges[1]: \"q\" is not in model.vocab"},
      {"merge makes no token",
       [](Json& j) {
         j["model"]["merges"].push_back({"c", "c"});
       },
       "model.merges[2]: \"cc\" is not in model.vocab"},
      {"merge of three",
       [](Json& j) {
         j["model"]["merges"][0] = {"a", "b", "c"};
       },
       "model.merges[0]: a merge is a pair"},
      {"merge of one", [](Json& j) { j["model"]["merges"][0] = {"a"}; },
       "model.merges[0]: a merge is a pair"},
      {"merge line of three", [](Json& j) { j["model"]["merges"][0] = "a b c"; }, "model.merges[0]"},
      {"merge is a number", [](Json& j) { j["model"]["merges"][0] = 7; },
       "model.merges[0]: a merge is a pair"},
      {"merge part is a number",
       [](Json& j) {
         j["model"]["merges"][1] = {"ab", 7};
       },
       "model.merges[1]"},
      {"merge part is a list",
       [](Json& j) {
         j["model"]["merges"][1] = {"ab", {"c"}};
       },
       "model.merges[1]"},
      {"prefix longer than a merge's token",
       [](Json& j) { j["model"]["continuing_subword_prefix"] = "####"; },
       "model.merges[0]: \"b\" is shorter"},
      {"fuse_unk type", [](Json& j) { j["model"]["fuse_unk"] = "yes"; },
       "model.fuse_unk: true or false is expected"},
      {"unk_token type", [](Json& j) { j["model"]["unk_token"] = 3; },
       "model.unk_token: a string is expected"},
      {"added_tokens type", [](Json& j) { j["added_tokens"] = "x"; }, "added_tokens: an array is expected"},
      {"added token without flags",
       [](Json& j) {
         j["added_tokens"] = {{{"id", 5}, {"content", "x"}}};
       },
       "added_tokens[0]: the field \"single_word\" is missing"},
      {"added token with a vocabulary token's id",
       [](Json& j) { j["added_tokens"] = Json::array({AddedTokenJson(0, "x")}); },
       "added_tokens[0]: id is 0, but the next id behind model.vocab is 5"},
      {"added token with another id",
       [](Json& j) { j["added_tokens"] = Json::array({AddedTokenJson(5, "a")}); },
       "added_tokens[0]: id is 5, but in model.vocab the token has 0"},
      {"added token id out of range",
       [](Json& j) { j["added_tokens"] = Json::array({AddedTokenJson(1 << 30, "x")}); },
       "added_tokens[0].id: 1073741824 is not between"},
      {"added token twice",
       [](Json& j) {
         j["added_tokens"] = Json::array({AddedTokenJson(5, "x"), AddedTokenJson(6, "x")});
       },
       "added_tokens[1]: content is also that of an earlier"},
      {"empty added token", [](Json& j) { j["added_tokens"] = Json::array({AddedTokenJson(5, "")}); },
       "added_tokens[0]: content has 0"},
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", ""}};
       },
       "normalizer.type: \"Precompiled\" is not supported; supported: NFC", kUnsupported},
      {"BertNormalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "BertNormalizer"}};
       },
       "\"BertNormalizer\"", kUnsupported},
      {"normalizer without type", [](Json& j) { j["normalizer"] = Json::object(); },
       "normalizer: the field \"type\""},
      {"nested normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Odd"}}}}};
       },
       "normalizer.normalizers[1].type: \"Odd\"", kUnsupported},
      {"replace pattern",
       [](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", "a"}, {"content", "b"}};
       },
       "normalizer.pattern:"},
      {"regex of a normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "(a"}}}, {"content", "b"}};
       },
       "normalizer.pattern.Regex: regular expression"},
      {"pre-tokenizer",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
       },
       "pre_tokenizer.type: \"UnicodeScripts\" is not supported; supported: Split", kUnsupported},
      {"split behavior",
       [](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}, {"invert", false}};
       },
       "pre_tokenizer.behavior: \"Odd\"", kUnsupported},
      {"metaspace replacement",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "ab"}};
       },
       "pre_tokenizer.replacement: one character is expected"},
      {"metaspace scheme",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "odd"}};
       },
       "pre_tokenizer.prepend_scheme: \"odd\"", kUnsupported},
      {"fixed length",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "FixedLength"}, {"length", 0}};
       },
       "pre_tokenizer.length: 0 is not between"},
      {"post-processor",
       [](Json& j) {
         j["post_processor"] = {{"type", "Odd"}};
       },
       "post_processor.type: \"Odd\"", kUnsupported},
      {"template token that is not there",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "X"}, {"type_id", 0}}}}}},
                                {"special_tokens", Json::object()}};
       },
       "post_processor.single[0].SpecialToken: \"X\" is not in special_tokens"},
      {"template id out of range",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", Json::array()},
                                {"special_tokens", {{"X", {{"ids", {99}}}}}}};
       },
       "post_processor.special_tokens.X.ids[0]: 99 is not between 0 and 4"},
      {"template of the second text",
       [](Json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"Sequence", {{"id", "B"}, {"type_id", 0}}}}}},
                                {"special_tokens", Json::object()}};
       },
       "post_processor.single[0].Sequence.id: \"B\"", kUnsupported},
      {"two templates",
       [](Json& j) {
         const Json bert = {{"type", "BertProcessing"}, {"sep", {"a", 0}}, {"cls", {"b", 1}}};
         j["post_processor"] = {{"type", "Sequence"}, {"processors", {bert, bert}}};
       },
       "post_processor.processors[1]: a second post-processor", kUnsupported},
      {"decoder",
       [](Json& j) {
         j["decoder"] = {{"type", "CTC"}};
       },
       "decoder.type: \"CTC\" is not supported", kUnsupported},
      {"strip count",
       [](Json& j) {
         j["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}};
       },
       "decoder.start: -1 is not between"},
      {"too many decoders",
       [](Json& j) {
         j["decoder"] = {{"type", "Sequence"}, {"decoders", Json(100, Json{{"type", "Fuse"}})}};
       },
       "decoder.decoders[64]: more than 64 decoders"},
  };
  return cases;
}

TEST(HostileFileTest, EveryErrorNamesFileAndField) {
  EXPECT_TRUE(Make(SmallTokenizer()) != nullptr);
  for (const Case& test : Cases()) {
    SCOPED_TRACE(test.what);
    Json config = SmallTokenizer();
    test.breaks(config);
    const absl::Status status = LoadError(config);
    EXPECT_EQ(status.code(), test.code) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("test.json: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(test.message));
  }
}

TEST(HostileFileTest, TextThatIsNoTokenizer) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "byte 1"},
      {"null", "a JSON object is expected"},
      {"[1]", "a JSON object is expected"},
      {"{\"model\": {\"vocab\": {\"a\": 0}", "byte"},
      {"{\"model\": \"\xFF\"}", "byte 11: not UTF-8"},
      {"{\"model\": \"\\ud800\"}", "byte"},
      {"{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}",
       "model.vocab[\"a\"]: the token occurs twice"},
      {"{\"model\": {\"vocab\": {}, \"vocab\": {}}}", "model.vocab occurs twice"},
      {"{\"model\": {\"type\": \"BPE\", \"type\": \"BPE\"}}", "the key \"type\" occurs twice"},
      {"{\"model\": {\"vocab\": [[[1]]], \"merges\": [], \"type\": \"BPE\"}}", "\"vocab\" is missing"},
      {"{\"normalizer\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}",
       "nested deeper than"},
      {"{\"model\": {\"vocab\": " + std::string(100'000, '[') + "1" + std::string(100'000, ']') + "}}",
       "nested deeper than"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status = LoadError(text);
    SCOPED_TRACE(text.substr(0, 80));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("test.json: "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(HostileFileTest, EveryPrefixOfAFileIsAnError) {
  const std::string json = SmallTokenizer().dump();
  for (std::size_t size = 0; size < json.size(); ++size) {
    EXPECT_FALSE(LoadError(json.substr(0, size)).ok()) << size;
  }
}

TEST(HostileFileTest, ControlCharactersDoNotReachTheMessage) {
  Json config = SmallTokenizer();
  config["model"]["merges"][0] = {"a\x1b[31m", "b"};
  const std::string message(LoadError(config).message());
  EXPECT_EQ(message.find('\x1b'), std::string::npos) << message;
}

}  // namespace
}  // namespace comoe::tokenizer
