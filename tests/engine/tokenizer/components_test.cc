// Every component against what the reference library did with it: tests/fixtures/tokenizers/components.json,
// drawn and written by make_components.py beside it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;

Json RunNormalizer(const Json& config, const std::string& input) {
  const auto normalizer = ParseNormalizer(JsonField(&config, "normalizer"));
  if (!normalizer.ok()) return std::string(normalizer.status().ToString());
  AlignedText text = AlignedText::FromOriginal(input, 0, true);
  const absl::Status status = (*normalizer)->Normalize(&text);
  return std::string(status.ok() ? text.view() : absl::string_view(status.ToString()));
}

Json RunPreTokenizer(const Json& config, const std::string& input) {
  const auto pre_tokenizer = ParsePreTokenizer(JsonField(&config, "pre_tokenizer"));
  if (!pre_tokenizer.ok()) return std::string(pre_tokenizer.status().ToString());
  PreTokenized text(true);
  EXPECT_TRUE(text.Append(AlignedText::FromOriginal(input, 0, true), 0, input.size(), kNoToken).ok());
  EXPECT_TRUE((*pre_tokenizer)->Apply(&text).ok());
  Json pieces = Json::array();
  for (const Piece& piece : text.pieces()) {
    pieces.push_back({std::string(text.text().view(piece.begin, piece.end)),
                      text.text().span(piece.begin).begin, text.text().span(piece.end - 1).end});
  }
  return pieces;
}

Json RunDecoder(const Json& config, const std::vector<std::string>& tokens) {
  const absl::StatusOr<Decoder> decoder = Decoder::Parse(JsonField(&config, "decoder"));
  if (!decoder.ok()) return std::string(decoder.status().ToString());
  const auto pipeline = decoder->NewPipeline();
  for (const std::string& token : tokens) {
    EXPECT_TRUE(pipeline->Push(token).ok());
  }
  EXPECT_TRUE(pipeline->Finish().ok());
  return pipeline->TakeText();
}

void CheckTokenizer(const Json& test) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(test["config"]);
  ASSERT_NE(tokenizer, nullptr);
  for (const Json& encoding : test["encodings"]) {
    SCOPED_TRACE(encoding[0].dump());
    const std::string text = encoding[0];
    for (const bool add_special : {true, false}) {
      const auto ids = tokenizer->Encode(text, add_special);
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(Json(*ids), encoding[add_special ? 1 : 2]);
    }
  }
  for (const Json& decoding : test["decodings"]) {
    SCOPED_TRACE(decoding[0].dump());
    const std::vector<base::TokenId> ids = decoding[0];
    for (const bool skip_special : {true, false}) {
      const auto text = tokenizer->Decode(ids, skip_special);
      ASSERT_TRUE(text.ok()) << text.status();
      EXPECT_EQ(Json(*text), decoding[skip_special ? 1 : 2]);
    }
  }
}

TEST(ComponentsTest, DoWhatTheReferenceDid) {
  const Json tests = ReadJson(SourcePath("tests/fixtures/tokenizers/components.json"));
  ASSERT_GT(tests.size(), 300u);
  for (const Json& test : tests) {
    const std::string kind = test["kind"];
    SCOPED_TRACE(kind + " " + test["config"].dump());
    if (kind == "tokenizer") {
      CheckTokenizer(test);
      continue;
    }
    for (const Json& pair : test["cases"]) {
      SCOPED_TRACE(pair[0].dump());
      const Json got = kind == "normalizer"      ? RunNormalizer(test["config"], pair[0])
                       : kind == "pre_tokenizer" ? RunPreTokenizer(test["config"], pair[0])
                                                 : RunDecoder(test["config"], pair[0]);
      EXPECT_EQ(got, pair[1]);
    }
  }
}

}  // namespace
}  // namespace comoe::tokenizer
