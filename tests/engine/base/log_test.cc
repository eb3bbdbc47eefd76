#include "engine/base/log.h"

#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::base {
namespace {

using ::testing::EndsWith;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override { SetLogLevel(LogLevel::kInfo); }

  template <typename Action>
  static std::string Captured(const Action& action) {
    ::testing::internal::CaptureStderr();
    action();
    return ::testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, ALineHasTimeLevelAndPart) {
  const std::string line = Captured([] { Log(LogLevel::kWarning, "engine", "it is warm"); });
  EXPECT_THAT(line, MatchesRegex("20..-..-..T..:..:..\\....Z W engine: it is warm\n"));
}

TEST_F(LogTest, LevelsBelowTheThresholdAreDropped) {
  EXPECT_EQ(Captured([] { Log(LogLevel::kDebug, "a", "b"); }), "");
  EXPECT_THAT(Captured([] { Log(LogLevel::kInfo, "a", "b"); }), EndsWith(" I a: b\n"));
  SetLogLevel(LogLevel::kError);
  EXPECT_EQ(GetLogLevel(), LogLevel::kError);
  EXPECT_EQ(Captured([] { Logf(LogLevel::kWarning, "a", "%d", 1); }), "");
  EXPECT_THAT(Captured([] { Logf(LogLevel::kError, "a", "%d of %s", 1, "b"); }), EndsWith(" E a: 1 of b\n"));
  SetLogLevel(LogLevel::kDebug);
  EXPECT_THAT(Captured([] { Log(LogLevel::kDebug, "a", "b"); }), EndsWith(" D a: b\n"));
}

TEST_F(LogTest, TextFromOutsideCannotForgeALine) {
  constexpr char kText[] = "x\n2026 E engine: \x1b[31m\r\t\x7f\0 \xc3\xa4";
  const std::string line =
      Captured([&] { Log(LogLevel::kInfo, "server", absl::string_view(kText, sizeof kText - 1)); });
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_THAT(line, EndsWith("server: x\\x0a2026 E engine: \\x1b[31m\\x0d\\x09\\x7f\\x00 \xc3\xa4\n"));
}

}  // namespace
}  // namespace comoe::base
