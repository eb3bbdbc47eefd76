#include "engine/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/regex_syntax.h"

namespace comoe::tokenizer {
namespace {

using testing::HasSubstr;

std::vector<std::string> Matches(absl::string_view pattern, absl::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::string> found;
  if (regex.ok()) {
    std::vector<RegexMatch> matches;
    EXPECT_TRUE(Regex::Matcher(**regex).FindAll(text, &matches).ok());
    for (const RegexMatch& match : matches) {
      found.emplace_back(text.substr(match.begin, match.end - match.begin));
    }
  }
  return found;
}

using Strings = std::vector<std::string>;

// Where Oniguruma and PCRE2 differ; the matches are Oniguruma's.
TEST(RegexTest, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(Matches(R"(\s+)", "a\u180Eb\u0085c\vd"), (Strings{"\u0085", "\v"}));
  EXPECT_EQ(Matches(R"(\w+)", "a_b‿c e\u0301 ⓐ ½ Ⅷ"), (Strings{"a_b‿c", "e\u0301", "ⓐ", "½", "Ⅷ"}));
  EXPECT_EQ(Matches(R"([\w]+)", "½a"), (Strings{"a"}));
  EXPECT_EQ(Matches(R"(\h+)", "xyz12fg"), (Strings{"12f"}));
  EXPECT_EQ(Matches(R"(\v)", "a\vb\n"), (Strings{"\v"}));
  EXPECT_EQ(Matches(R"(\u4e00)", "一"), (Strings{"一"}));
  EXPECT_EQ(Matches(R"(b$)", "ab\nab"), (Strings{"b", "b"}));
  EXPECT_EQ(Matches(R"(^a)", "ab\nab"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches(R"((?m:a.b))", "a\nb"), (Strings{"a\nb"}));
  EXPECT_EQ(Matches(R"(a.b)", "a\nb"), Strings{});
  EXPECT_EQ(Matches(R"(\d{1,3}+)", "12345678a"), (Strings{"12345678"}));
  EXPECT_EQ(Matches(R"(a{,2})", "aaa"), (Strings{"aa", "a"}));
  EXPECT_EQ(Matches(R"(a(?i)b|c)", "aB C aC"), (Strings{"aB", "aC"}));
  EXPECT_EQ(Matches(R"([\p{L}&&[^\p{Han}]]+)", "ab漢字cd"), (Strings{"ab", "cd"}));
  EXPECT_EQ(Matches(R"([^\W\d]+)", "ab1"), (Strings{"ab"}));
  EXPECT_EQ(Matches(R"([a[bc]]+)", "xabcx"), (Strings{"abc"}));
  EXPECT_EQ(Matches(R"(\p{Letter}+)", "ab1"), (Strings{"ab"}));
  EXPECT_EQ(Matches(R"(\p{^L}+)", "ab1"), (Strings{"1"}));
  EXPECT_EQ(Matches(R"([[:punct:]])", "a$.+"), (Strings{"$", ".", "+"}));
  EXPECT_EQ(Matches(R"(a{1)", "a{1"), (Strings{"a{1"}));
  EXPECT_EQ(Matches(R"((?i:'s))", "'S 'ſ"), (Strings{"'S", "'ſ"}));
  EXPECT_EQ(Matches(R"(\p{Han}+)", "、漢ー"), (Strings{"漢"}));  // the script, not the script extensions
}

TEST(RegexTest, LeavesOutEmptyMatchesBehindAMatch) {
  EXPECT_EQ(Matches("a*", "aab"), (Strings{"aa", ""}));
  EXPECT_EQ(Matches("", "漢a"), (Strings{"", "", ""}));
}

TEST(RegexTest, RefusesWhatItCannotTranslate) {
  const std::pair<absl::string_view, absl::StatusCode> cases[] = {
      {"(a", absl::StatusCode::kInvalidArgument},
      {"a)", absl::StatusCode::kInvalidArgument},
      {"*a", absl::StatusCode::kInvalidArgument},
      {"a|*", absl::StatusCode::kInvalidArgument},
      {"[a", absl::StatusCode::kInvalidArgument},
      {"[z-a]", absl::StatusCode::kInvalidArgument},
      {"\\", absl::StatusCode::kInvalidArgument},
      {"\\x{110000}", absl::StatusCode::kInvalidArgument},
      {"\\xE4", absl::StatusCode::kInvalidArgument},
      {"(?P<n>a)", absl::StatusCode::kUnimplemented},
      {"(?s:.)", absl::StatusCode::kUnimplemented},
      {"(?x: a)", absl::StatusCode::kUnimplemented},
      {"a\\Kb", absl::StatusCode::kUnimplemented},
      {"\\pL", absl::StatusCode::kUnimplemented},
      {"\\q", absl::StatusCode::kUnimplemented},
      {"(?~ab)", absl::StatusCode::kUnimplemented},
      {"\\p{InKatakana}", absl::StatusCode::kInvalidArgument},
      {"a{70000}", absl::StatusCode::kUnimplemented},
      {"(*LIMIT_MATCH=1)a", absl::StatusCode::kInvalidArgument},
      {"(?<=a+)b", absl::StatusCode::kInvalidArgument},
      {"\xFF", absl::StatusCode::kInvalidArgument},
  };
  for (const auto& [pattern, code] : cases) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), code) << pattern << ": " << regex.status();
    EXPECT_THAT(std::string(regex.status().message()), HasSubstr("regular expression"));
  }
  EXPECT_FALSE(Regex::Compile(std::string(5000, '(') + std::string(5000, ')')).ok());
  EXPECT_FALSE(Regex::Compile(std::string(5000, '[') + "a" + std::string(5000, ']')).ok());
  EXPECT_FALSE(Regex::Compile(std::string(1 << 20, 'a')).ok());
}

TEST(RegexTest, ExponentialPatternEndsInAnError) {
  RegexLimits limits;
  limits.match_limit = 100'000;
  const auto regex = Regex::Compile("(?:a|aa)+[bc]", limits);
  ASSERT_TRUE(regex.ok());
  std::vector<RegexMatch> matches;
  const absl::Status status = Regex::Matcher(**regex).FindAll(std::string(64, 'a'), &matches);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(RegexTest, QuadraticPatternEndsInAnError) {
  RegexLimits limits;
  limits.base_time = absl::Milliseconds(1);
  limits.time_per_mebibyte = absl::ZeroDuration();
  const auto regex = Regex::Compile("(?>a+)b", limits);
  ASSERT_TRUE(regex.ok());
  std::vector<RegexMatch> matches;
  const absl::Status status = Regex::Matcher(**regex).FindAll(std::string(1 << 18, 'a'), &matches);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(RegexTest, DeepBacktrackingGetsABiggerStack) {
  const auto regex = Regex::Compile("(?:a|b)+c");
  ASSERT_TRUE(regex.ok());
  std::string text(200'000, 'a');
  text.push_back('c');
  std::vector<RegexMatch> matches;
  ASSERT_TRUE(Regex::Matcher(**regex).FindAll(text, &matches).ok());
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].end, text.size());
}

TEST(RegexTest, FindsMatchesBeyondOneCallsReach) {
  std::string text(1 << 20, 'a');
  text += "漢b";
  EXPECT_EQ(Matches("漢|b", text), (Strings{"漢", "b"}));
}

}  // namespace
}  // namespace comoe::tokenizer
