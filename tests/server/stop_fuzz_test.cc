// Random streams of tokens over every tokenizer of the fixtures, with stop strings in every place, cut into
// chunks at random: text, tokens and finish reason are those of the obvious reference (decode all ids at
// once, std::string::find), and no piece is anything but whole characters.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/choice.h"

namespace comoe::server {
namespace {

using tokenizer::IsUtf8Continuation;

constexpr int kStreamsPerTokenizer = 600;
constexpr int kChunkingsPerStream = 4;

struct Named {
  std::string name;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
};

std::vector<Named> LoadAll() {
  const char* root = std::getenv("COMOE_SOURCE_DIR");
  std::vector<Named> all;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(root != nullptr ? root : ".") +
                                                               "/tests/fixtures/tokenizers")) {
    if (entry.is_directory()) {
      all.push_back({entry.path().filename(),
                     tokenizer::Tokenizer::Load(entry.path().string() + "/tokenizer.json").value()});
    }
  }
  return all;
}

struct Result {
  std::string text;
  std::vector<std::uint32_t> ids;
  std::optional<std::string> stop;  // the one that was found

  bool operator==(const Result& other) const {
    return text == other.text && ids == other.ids && stop == other.stop;
  }
};

class Fuzz {
 public:
  Fuzz(const tokenizer::Tokenizer& tokenizer, std::uint32_t seed) : tokenizer_(tokenizer), random_(seed) {}

  std::size_t Below(std::size_t bound) { return random_() % bound; }

  // Any ids, or real text with many characters of several bytes, or both.
  std::vector<base::TokenId> Tokens() {
    static const std::vector<std::string> kTexts = {
        "The quick brown fox jumps over the lazy dog.\n\nEnd of story. ###",
        "na\xC3\xAFve caf\xC3\xA9 \xE2\x82\xAC"
        "5, \xE4\xBD\xA0\xE5\xA5\xBD\xE4\xB8\x96\xE7\x95\x8C",
        "\xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD and \xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",
        "aaaaabaaab abab <|end|> user: assistant:", "   \t\n  spaces "};
    std::vector<base::TokenId> ids;
    for (std::size_t part = 0; part <= Below(3); ++part) {
      if (Below(3) == 0) {
        for (std::size_t i = 0; i <= Below(12); ++i) {
          ids.push_back(static_cast<base::TokenId>(Below(static_cast<std::size_t>(tokenizer_.vocab_size()))));
        }
      } else {
        const std::vector<base::TokenId> real =
            tokenizer_.Encode(kTexts[Below(kTexts.size())], false).value();
        ids.insert(ids.end(), real.begin(), real.end());
      }
    }
    return ids;
  }

  // A piece of the text between characters: at its start, its end, anywhere; or not in it; or overlapping.
  std::string StopString(const std::string& text) {
    std::size_t begin = text.empty() || Below(6) == 0 ? 0 : Below(text.size());
    std::size_t end = std::min(text.size(), begin + 1 + Below(12));
    end = Below(8) == 0 ? text.size() : end;
    while (begin < text.size() && IsUtf8Continuation(text[begin])) {
      ++begin;
    }
    while (end < text.size() && IsUtf8Continuation(text[end])) {
      ++end;
    }
    std::string stop = begin < end ? text.substr(begin, end - begin) : "zq";
    if (stop.size() > 256) {
      return "zq";
    }
    if (Below(4) == 0) {
      stop += Below(2) == 0 ? "~never~" : "\xE2\x82\xAC";  // begins in the text, does not end there
    }
    return stop;
  }

  std::mt19937& random() { return random_; }

 private:
  const tokenizer::Tokenizer& tokenizer_;
  std::mt19937 random_;
};

// The text that is certain after so many tokens, and the whole.
std::vector<std::size_t> CertainBytes(const tokenizer::Tokenizer& tokenizer,
                                      const std::vector<base::TokenId>& ids) {
  tokenizer::StreamDecoder decoder(&tokenizer, true);
  std::vector<std::size_t> bytes = {0};
  for (const base::TokenId id : ids) {
    const absl::StatusOr<std::string> piece = decoder.Push(id);
    bytes.push_back(bytes.back() + (piece.ok() ? piece->size() : 0));
  }
  return bytes;
}

Result Reference(const tokenizer::Tokenizer& tokenizer, const std::vector<base::TokenId>& ids,
                 const std::vector<std::string>& stops, std::int64_t min_tokens, bool include_stop) {
  std::vector<base::TokenId> known;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(known),
               [&tokenizer](base::TokenId id) { return tokenizer.IdToToken(id).ok(); });
  Result result;
  result.text = tokenizer.Decode(known, true).value();
  result.ids.assign(ids.begin(), ids.end());
  const std::vector<std::size_t> certain = CertainBytes(tokenizer, ids);
  const auto skip = static_cast<std::size_t>(min_tokens);
  if (skip >= ids.size() && skip > 0) {
    return result;
  }
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops) {
    const std::size_t at = result.text.find(stop, certain[skip]);
    if (at == std::string::npos) {
      continue;
    }
    const bool longer = at + stop.size() == end && stop.size() > result.stop->size();
    if (at + stop.size() < end || longer) {
      end = at + stop.size();
      result.stop = stop;
    }
  }
  if (result.stop.has_value()) {
    result.text.resize(include_stop ? end : end - result.stop->size());
    // The token that completes it; text that waits for the end comes with the last.
    std::size_t count = 0;
    while (count < ids.size() && certain[count] < end) {
      ++count;
    }
    result.ids.resize(count);
  }
  return result;
}

// As a generation does it, in chunks of the given sizes.
Result RunChoice(const ChoiceContext& context, const std::vector<base::TokenId>& ids,
                 const std::vector<std::size_t>& chunks) {
  Choice choice(0, context);
  choice.OnStarted(0);
  Result result;
  std::vector<absl::Duration> gaps;
  const auto take = [&] {
    choice.Read(&gaps);
    v1::GenerateStreamResponse::Delta delta;
    choice.Take(&delta);
    EXPECT_TRUE(tokenizer::IsValidUtf8(delta.text())) << "a broken character";
    result.text += delta.text();
    result.ids.insert(result.ids.end(), delta.token_ids().begin(), delta.token_ids().end());
  };
  std::size_t at = 0;
  for (const std::size_t chunk : chunks) {
    std::vector<batching::GeneratedToken> tokens(chunk);
    for (batching::GeneratedToken& token : tokens) {
      token.id = ids[at++];
    }
    choice.OnTokens(tokens);
    take();
  }
  batching::RequestOutcome outcome;
  outcome.reason = batching::FinishReason::kMaxTokens;
  outcome.usage.completion_tokens = static_cast<std::int64_t>(ids.size());
  choice.OnFinished(outcome);
  take();
  v1::GenerateResponse::Choice end;
  choice.FillEnd(&end);
  if (end.finish_reason() == v1::FINISH_REASON_STOP_STRING) {
    result.stop = end.stop_string();
  } else {
    EXPECT_EQ(end.finish_reason(), v1::FINISH_REASON_MAX_TOKENS);
  }
  EXPECT_EQ(choice.num_taken_tokens(), static_cast<std::int64_t>(result.ids.size()));
  EXPECT_EQ(choice.outcome().usage.completion_tokens, choice.num_taken_tokens());
  EXPECT_EQ(choice.num_taken_tokens() + choice.num_discarded(), static_cast<std::int64_t>(ids.size()));
  return result;
}

TEST(StopFuzz, AnyChunksGiveTheTextOfTheReference) {
  const std::vector<Named> tokenizers = LoadAll();
  ASSERT_EQ(tokenizers.size(), 9U);
  int num_streams = 0;
  int num_stopped = 0;
  for (const Named& named : tokenizers) {
    const tokenizer::Tokenizer& tokenizer = *named.tokenizer;
    Fuzz fuzz(tokenizer, static_cast<std::uint32_t>(1000 + num_streams));
    for (int round = 0; round < kStreamsPerTokenizer; ++round, ++num_streams) {
      const std::vector<base::TokenId> ids = fuzz.Tokens();
      const std::string whole = Reference(tokenizer, ids, {}, 0, false).text;
      GenerationSpec spec;
      for (std::size_t i = 0; i <= fuzz.Below(4); ++i) {
        spec.stop_strings.push_back(fuzz.StopString(whole));
      }
      spec.output.include_stop_in_output = fuzz.Below(2) == 0;
      spec.request.stop.min_tokens =
          fuzz.Below(3) == 0 ? static_cast<std::int64_t>(fuzz.Below(ids.size() + 1)) : 0;
      ChoiceContext context{
          spec, &tokenizer, std::make_shared<const StopStrings>(spec.stop_strings), {}, [] {}};
      const Result reference = Reference(tokenizer, ids, spec.stop_strings, spec.request.stop.min_tokens,
                                         spec.output.include_stop_in_output);
      num_stopped += reference.stop.has_value() ? 1 : 0;
      for (int chunking = 0; chunking < kChunkingsPerStream; ++chunking) {
        std::vector<std::size_t> chunks;
        const std::size_t largest = chunking == 0   ? 1
                                    : chunking == 1 ? ids.size()
                                                    : 1 + fuzz.Below(ids.size());
        for (std::size_t left = ids.size(); left > 0; left -= chunks.back()) {
          chunks.push_back(chunking <= 1 ? std::min(left, largest) : 1 + fuzz.Below(std::min(left, largest)));
        }
        const Result result = RunChoice(context, ids, chunks);
        ASSERT_EQ(result.text, reference.text) << named.name << ", stream " << round
                                               << ", stops: " << ::testing::PrintToString(spec.stop_strings);
        ASSERT_EQ(result.stop, reference.stop) << named.name << ", stream " << round;
        ASSERT_EQ(result.ids, reference.ids) << named.name << ", stream " << round;
      }
    }
  }
  EXPECT_GE(num_streams, 1000);
  // Not so many or few that one of the two is not tested.
  EXPECT_GT(num_stopped, num_streams / 4);
  EXPECT_LT(num_stopped, num_streams * 19 / 20);
  ::testing::Test::RecordProperty("streams", num_streams);
  ::testing::Test::RecordProperty("stopped", num_stopped);
}

// A byte costs the same however long the strings are that it might become.
TEST(StopFuzz, LongStringsThatNearlyMatchCostNoMore) {
  std::vector<std::string> stops;
  for (int i = 0; i < 16; ++i) {
    stops.push_back(std::string(static_cast<std::size_t>(255 - i), 'a') + "b");
  }
  StopMatcher matcher(std::make_shared<const StopStrings>(stops), false);
  std::string out;
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 200000; ++i) {
    ASSERT_FALSE(matcher.Push("aaaac", &out));
    ASSERT_FALSE(matcher.Push("a", &out));
  }
  EXPECT_EQ(out.size(), 200000U * 6 - 1);
  // 1.2 million bytes: some 20 ms; a comparison with every string at every byte would take some seconds.
  EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
}

}  // namespace
}  // namespace comoe::server
