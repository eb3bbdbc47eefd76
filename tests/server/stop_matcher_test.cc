#include "server/stop_matcher.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace comoe::server {
namespace {

// What Push put out, piece by piece, and what is held back in the end shown as "<...>"; "!" after a match.
std::string Trace(const std::vector<std::string>& stops, const std::vector<std::string>& pieces,
                  bool include_match = false) {
  StopMatcher matcher(std::make_shared<const StopStrings>(stops), include_match);
  std::string trace;
  for (const std::string& piece : pieces) {
    std::string out;
    const bool matched = matcher.Push(piece, &out);
    EXPECT_EQ(matched, matcher.matched());
    trace += "[" + out + "]";
    if (matched) {
      return trace + "!" + matcher.match();
    }
  }
  std::string rest;
  matcher.Flush(&rest);
  return trace + "<" + rest + ">";
}

TEST(StopMatcher, HoldsBackExactlyWhatCouldBecomeAString) {
  EXPECT_EQ(Trace({"stop"}, {"abc", "s", "to", "x"}), "[abc][][][stox]<>");
  EXPECT_EQ(Trace({"stop"}, {"a st"}), "[a ]<st>");
  EXPECT_EQ(Trace({"stop"}, {"a sts"}), "[a st]<s>") << "not as much as the string is long";
  EXPECT_EQ(Trace({"aab"}, {"aaaa"}), "[aa]<aa>");
  EXPECT_EQ(Trace({"aab", "xaaa"}, {"xaa", "c"}), "[][xaac]<>");
}

TEST(StopMatcher, FindsAStringWhereverItIsCut) {
  EXPECT_EQ(Trace({"stop"}, {"a stop b"}), "[a ]!stop");
  EXPECT_EQ(Trace({"stop"}, {"a s", "to", "p b"}), "[a ][][]!stop");
  EXPECT_EQ(Trace({"stop"}, {"ststop"}), "[st]!stop");
  EXPECT_EQ(Trace({"stop"}, {"stop"}), "[]!stop");
  EXPECT_EQ(Trace({"stop"}, {"a stop b"}, true), "[a stop]!stop");
  EXPECT_EQ(Trace({"\xC3\xA9t\xC3\xA9"}, {"l'\xC3\xA9", "t", "\xC3\xA9!"}), "[l'][][]!\xC3\xA9t\xC3\xA9");
}

TEST(StopMatcher, TheOneThatEndsFirstAndOfThoseTheLongest) {
  EXPECT_EQ(Trace({"abcd", "bc"}, {"xabcd"}), "[xa]!bc");
  EXPECT_EQ(Trace({"bc", "abc", "c"}, {"xabc"}), "[x]!abc");
  EXPECT_EQ(Trace({"abcdef", "cd"}, {"ab", "cde"}), "[][ab]!cd") << "a prefix that waits is text after all";
  EXPECT_EQ(Trace({"a", "a"}, {"ba"}), "[b]!a");
}

// Against the definition, on a small alphabet, where everything overlaps.
TEST(StopMatcher, RandomStringsAndPieces) {
  std::mt19937 random(5);
  const auto letters = [&random](std::size_t length) {
    std::string out;
    for (std::size_t i = 0; i < length; ++i) {
      out += static_cast<char>('a' + random() % 2);
    }
    return out;
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t i = 0; i <= random() % 4; ++i) {
      stops.push_back(letters(1 + random() % 8));
    }
    const std::string text = letters(random() % 40);
    std::size_t end = std::string::npos;
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      const std::size_t at = text.find(stop);
      if (at == std::string::npos) {
        continue;
      }
      if (at + stop.size() < end || (at + stop.size() == end && stop.size() > longest)) {
        end = at + stop.size();
        longest = stop.size();
      }
    }
    StopMatcher matcher(std::make_shared<const StopStrings>(stops), false);
    std::string out;
    for (std::size_t at = 0; at < text.size() && !matcher.matched();) {
      const std::size_t length = 1 + random() % 5;
      const std::string pushed = text.substr(0, at + length);
      matcher.Push(absl::string_view(text).substr(at, length), &out);
      at += length;
      if (!matcher.matched()) {
        std::size_t held = 0;
        for (const std::string& stop : stops) {
          for (std::size_t n = held + 1; n < stop.size() && n <= pushed.size(); ++n) {
            held = pushed.compare(pushed.size() - n, n, stop, 0, n) == 0 ? n : held;
          }
        }
        ASSERT_EQ(out, pushed.substr(0, pushed.size() - held));
      }
    }
    ASSERT_EQ(matcher.matched(), end != std::string::npos) << text;
    if (matcher.matched()) {
      ASSERT_EQ(matcher.match().size(), longest);
      ASSERT_EQ(out, text.substr(0, end - longest));
    } else {
      matcher.Flush(&out);
      ASSERT_EQ(out, text);
    }
  }
}

}  // namespace
}  // namespace comoe::server
