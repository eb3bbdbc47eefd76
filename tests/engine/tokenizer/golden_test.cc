// The nine styles of tokenizer.json and the shipped model's, against the reference library's encodings; and
// streams of tokens against whole decodings.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/mapped_file.h"
#include "engine/base/rng.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/verify_golden.h"
#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;

class StyleTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Load(StyleFile(GetParam(), "tokenizer.json"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // Pushes the ids one by one: every piece is UTF-8, and together they are what Decode gives.
  void ExpectStreamEqualsDecode(const std::vector<base::TokenId>& ids) {
    for (const bool skip_special : {true, false}) {
      const auto whole = tokenizer_->Decode(ids, skip_special);
      ASSERT_TRUE(whole.ok()) << whole.status();
      StreamDecoder stream(tokenizer_.get(), skip_special);
      for (int round = 0; round < 2; ++round) {  // Flush begins a new stream
        std::string text;
        for (const base::TokenId id : ids) {
          const auto piece = stream.Push(id);
          ASSERT_TRUE(piece.ok()) << piece.status();
          EXPECT_TRUE(IsValidUtf8(*piece));
          text += *piece;
        }
        const auto rest = stream.Flush();
        ASSERT_TRUE(rest.ok()) << rest.status();
        EXPECT_TRUE(IsValidUtf8(*rest));
        EXPECT_EQ(text + *rest, *whole);
      }
    }
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(StyleTest, EncodesAndDecodesLikeTheReference) {
  const auto report = VerifyGolden(*tokenizer_, StyleFile(GetParam(), "golden.json"));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->cases, 178u);
  EXPECT_EQ(report->encodings, 2 * 178u);
  EXPECT_EQ(report->decodings, 2 * 178u);
  for (const GoldenMismatch& mismatch : report->first_mismatches) {
    ADD_FAILURE() << "case " << mismatch.case_index << " " << mismatch.what << "\nexpected "
                  << mismatch.expected << "\ngot      " << mismatch.got;
  }
  EXPECT_TRUE(report->all_equal());
}

TEST_P(StyleTest, StreamsEveryGoldenCase) {
  for (const Json& golden : ReadJson(StyleFile(GetParam(), "golden.json"))) {
    SCOPED_TRACE(golden["text"].dump());
    ExpectStreamEqualsDecode(golden["ids"].get<std::vector<base::TokenId>>());
  }
}

TEST_P(StyleTest, StreamsRandomIds) {
  constexpr std::uint64_t kSeed = 11;
  std::uint64_t draws = 0;
  const auto below = [&draws](int limit) {
    return static_cast<int>(base::RandomBits(kSeed, draws++) % static_cast<std::uint64_t>(limit));
  };
  const auto is_in_use = [&](int id) { return tokenizer_->IdToToken(id).ok(); };
  for (int i = 0; i < 2000; ++i) {
    std::vector<base::TokenId> ids;
    const int limit = i % 2 == 0 ? tokenizer_->vocab_size() : 300;  // the lower ids are bytes
    for (int n = below(24); n > 0; --n) {
      const base::TokenId id = below(limit);
      if (is_in_use(id)) {
        ids.push_back(id);
      }
    }
    SCOPED_TRACE(Json(ids).dump());
    ExpectStreamEqualsDecode(ids);
  }
}

TEST_P(StyleTest, OffsetsCoverTheTokensText) {
  for (const Json& golden : ReadJson(StyleFile(GetParam(), "golden.json"))) {
    const std::string text = golden["text"];
    SCOPED_TRACE(text);
    const auto tokens = tokenizer_->EncodeWithOffsets(text, true);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    std::vector<base::TokenId> ids;
    for (const TokenSpan& token : *tokens) {
      ids.push_back(token.id);
      EXPECT_LE(token.begin_bytes, token.end_bytes);
      ASSERT_LE(token.end_bytes, text.size());
      EXPECT_TRUE(IsValidUtf8(
          absl::string_view(text).substr(token.begin_bytes, token.end_bytes - token.begin_bytes)));
    }
    EXPECT_EQ(Json(ids), golden["ids"]);
  }
}

TEST_P(StyleTest, KnowsItsTokensByIdAndByName) {
  int known = 0;
  for (base::TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
    const auto token = tokenizer_->IdToToken(id);
    if (token.ok()) {
      ++known;
      EXPECT_EQ(tokenizer_->TokenToId(*token), id);
      EXPECT_FALSE(tokenizer_->TokenBytes(id).empty());
    }
  }
  EXPECT_GE(known, 1200);
  EXPECT_EQ(tokenizer_->IdToToken(tokenizer_->vocab_size()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(AllStyles, StyleTest, testing::ValuesIn(kStyles),
                         [](const auto& test) { return std::string(test.param); });

TEST(ShippedModelTest, EncodesItsGoldenPrompts) {
  const std::string folder = SourcePath("models/moe-32x4-demo");
  if (!std::filesystem::exists(folder + "/tokenizer.json")) {
    GTEST_SKIP() << folder << " is not there";
  }
  const auto tokenizer = Tokenizer::Load(folder + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 8192);
  for (const Json& golden : ReadJson(folder + "/golden_greedy.json")) {
    const auto ids = (*tokenizer)->Encode(golden["prompt"].get<std::string>(), true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Json(*ids), golden["prompt_ids"]);
    const auto text = (*tokenizer)->Decode(golden["output_ids"].get<std::vector<base::TokenId>>(), true);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, golden["text"].get<std::string>());
  }
}

TEST(VerifyGoldenTest, ReportsWhatDiffers) {
  const std::unique_ptr<Tokenizer> tokenizer = Make(SmallTokenizer());
  const std::string path = testing::TempDir() + "/comoe_verify_golden_test.json";
  ASSERT_TRUE(base::WriteFileAtomically(path, R"([
      {"text": "abc", "ids": [4], "ids_without_special": [4], "decoded": "abc", "decoded_with_special": "abc"},
      {"text": "abc", "ids": [3, 2], "decoded": "ab"}])")
                  .ok());
  const auto report = VerifyGolden(*tokenizer, path);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->cases, 2u);
  EXPECT_EQ(report->encodings, 3u);
  EXPECT_EQ(report->encodings_equal, 2u);
  EXPECT_EQ(report->decodings, 3u);
  EXPECT_EQ(report->decodings_equal, 2u);
  ASSERT_EQ(report->first_mismatches.size(), 2u);
  EXPECT_EQ(report->first_mismatches[0].case_index, 1u);
  EXPECT_EQ(report->first_mismatches[0].expected, "[3, 2]");
  EXPECT_EQ(report->first_mismatches[0].got, "[4]");
  EXPECT_FALSE(report->all_equal());
  ASSERT_TRUE(base::WriteFileAtomically(path, R"({"prompts": []})").ok());
  EXPECT_EQ(VerifyGolden(*tokenizer, path).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace comoe::tokenizer
