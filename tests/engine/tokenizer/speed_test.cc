// Prints how long loading and encoding take. Nothing is asserted about time: run it by hand, in a Release
// build.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/base/rng.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/stream_decoder.h"
#include "tests/engine/tokenizer/test_support.h"

namespace comoe::tokenizer {
namespace {

using Json = nlohmann::json;
constexpr std::uint64_t kSeed = 3;
constexpr std::size_t kMebibyte = 1 << 20;

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// 150,000 tokens over the byte-level alphabet, each new one a merge of two older ones.
std::string LargeTokenizer() {
  std::uint64_t draws = 0;
  Json config = SmallTokenizer();
  Json vocab = Json::object();
  Json merges = Json::array();
  std::vector<std::string> pool;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token(ByteLevelCharacter(static_cast<std::uint8_t>(byte)));
    vocab[token] = byte;
    if (byte >= 'a' && byte <= 'z') pool.push_back(token);
  }
  while (vocab.size() < 150'000) {
    const std::string left = pool[base::RandomBits(kSeed, draws++) % pool.size()];
    const std::string right = pool[base::RandomBits(kSeed, draws++) % pool.size()];
    const std::string token = left + right;
    if (token.size() <= 12 && vocab.emplace(token, vocab.size()).second) {
      pool.push_back(token);
      merges.push_back({left, right});
    }
  }
  config["model"]["vocab"] = std::move(vocab);
  config["model"]["merges"] = std::move(merges);
  config["normalizer"] = {{"type", "NFC"}};
  config["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  config["decoder"] = {{"type", "ByteLevel"}};
  return config.dump(1);
}

void TimeEncodings(const char* name, const Tokenizer& tokenizer) {
  std::uint64_t draws = 0;
  std::string letters;
  while (letters.size() < kMebibyte) {
    letters.push_back(static_cast<char>('a' + static_cast<int>(base::RandomBits(kSeed, draws++) % 26)));
  }
  std::string marks;
  while (marks.size() < kMebibyte) marks += "\u0301\u0323";
  std::string words;
  while (words.size() < kMebibyte) words += "the quick brown fox, ";
  const std::pair<const char*, std::string> texts[] = {{"letters without a space", letters},
                                                       {"one letter", std::string(kMebibyte, 'a')},
                                                       {"spaces", std::string(kMebibyte, ' ')},
                                                       {"combining marks", marks},
                                                       {"words", words}};
  for (const auto& [what, text] : texts) {
    const auto begin = std::chrono::steady_clock::now();
    const auto ids = tokenizer.Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::printf("%-26s 1 MiB of %-24s %.3f s, %zu tokens\n", name, what, Seconds(begin), ids->size());
    const auto decode_begin = std::chrono::steady_clock::now();
    StreamDecoder stream(&tokenizer, true);
    for (const base::TokenId id : *ids) {
      ASSERT_TRUE(stream.Push(id).ok());
    }
    std::printf("%-26s   streamed back in %.3f s\n", "", Seconds(decode_begin));
  }
}

TEST(TokenizerSpeed, LargeVocabulary) {
  const std::string json = LargeTokenizer();
  const auto begin = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::Parse(json, "large");
  std::printf("150,000 tokens, %zu bytes of JSON: loaded in %.3f s\n", json.size(), Seconds(begin));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  TimeEncodings("byte level, 150,000 tokens", **tokenizer);
}

TEST(TokenizerSpeed, EveryStyle) {
  for (const char* style : kStyles) {
    const auto tokenizer = Tokenizer::Load(StyleFile(style, "tokenizer.json"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    TimeEncodings(style, **tokenizer);
  }
}

}  // namespace
}  // namespace comoe::tokenizer
