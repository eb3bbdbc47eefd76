#include "server/text_stream.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/utf8.h"
#include "gtest/gtest.h"
#include "tests/server/test_util.h"

namespace comoe::server {
namespace {

class TextStreamTest : public ::testing::Test {
 protected:
  // The joined text; every piece is checked.
  std::string Stream(const std::vector<base::TokenId>& ids, TextStreamOptions options = {}) {
    TextStream stream(*tokenizer_, std::move(options));
    std::string joined;
    for (const base::TokenId id : ids) {
      std::string piece;
      stream.Push(id, &piece);
      EXPECT_TRUE(tokenizer::IsValidUtf8(piece));
      joined += piece;
    }
    std::string rest;
    stream.Flush(&rest);
    EXPECT_TRUE(tokenizer::IsValidUtf8(rest));
    return joined + rest;
  }

  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_ = LoadDemoTokenizer();
};

TEST_F(TextStreamTest, JoinedPiecesAreTheText) {
  for (const std::string text : {"Call me Ishmael.", "na\xC3\xAFve caf\xC3\xA9",
                                 "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80!", "  spaces\n\nand\tlines "}) {
    const std::vector<base::TokenId> ids = tokenizer_->Encode(text, false).value();
    EXPECT_EQ(Stream(ids), text);
  }
}

TEST_F(TextStreamTest, AnyTokensGiveWhatDecodeGives) {
  std::mt19937 random(20);
  std::uniform_int_distribution<base::TokenId> any(0, tokenizer_->vocab_size() - 1);
  for (int round = 0; round < 200; ++round) {
    std::vector<base::TokenId> ids(40);
    for (base::TokenId& id : ids) {
      id = any(random);
    }
    EXPECT_EQ(Stream(ids), tokenizer_->Decode(ids, true).value());
  }
}

TEST_F(TextStreamTest, AnIncompleteCharacterWaitsAndShowsOnceInTheEnd) {
  std::vector<base::TokenId> ids = tokenizer_->Encode("\xF0\x9F\x98\x80", false).value();
  ASSERT_GT(ids.size(), 1U);
  ids.pop_back();
  TextStream stream(*tokenizer_, {});
  std::string text;
  for (const base::TokenId id : ids) {
    stream.Push(id, &text);
  }
  EXPECT_EQ(text, "");
  stream.Flush(&text);
  EXPECT_EQ(text, "\xEF\xBF\xBD");
}

TEST_F(TextStreamTest, HiddenTokensHaveNoText) {
  const std::vector<base::TokenId> ids = tokenizer_->Encode("one two three", false).value();
  TextStreamOptions options;
  options.hidden_tokens = {ids.back()};
  const std::vector<base::TokenId> shown(ids.begin(), ids.end() - 1);
  EXPECT_EQ(Stream(ids, options), tokenizer_->Decode(shown, true).value());
}

TEST_F(TextStreamTest, AnIdWithoutATokenHasNoText) { EXPECT_EQ(Stream({tokenizer_->vocab_size() + 5}), ""); }

}  // namespace
}  // namespace comoe::server
