#include "engine/base/bytes.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::base {
namespace {

TEST(BytesTest, ParsesWhatPeopleWrite) {
  struct Case {
    const char* text;
    std::uint64_t bytes;
  };
  for (const Case& test :
       {Case{"0", 0}, Case{"1536", 1536}, Case{" 7 ", 7}, Case{"64KiB", 65536}, Case{"64 kib", 65536},
        Case{"1.5GiB", 1610612736}, Case{"2GB", 2000000000}, Case{"3MB", 3000000}, Case{"3mib", 3145728},
        Case{"1TiB", 1099511627776}, Case{"12B", 12}, Case{".5KiB", 512}, Case{"1.", 1}}) {
    const absl::StatusOr<std::uint64_t> bytes = ParseBytes(test.text);
    ASSERT_TRUE(bytes.ok()) << test.text << ": " << bytes.status();
    EXPECT_EQ(*bytes, test.bytes) << test.text;
  }
}

TEST(BytesTest, RefusesEverythingElse) {
  for (const std::string text : {"", " ", ".", "-1", "+1", "1e9", "1 GiB x", "GiB", "1..5", "nan", "inf",
                                 "0x10", "1XB", "99999999999999999999", "9e99", "10000000000GiB"}) {
    const absl::StatusOr<std::uint64_t> bytes = ParseBytes(text);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(bytes.status().message()), ::testing::HasSubstr("not a byte count")) << text;
  }
  EXPECT_FALSE(ParseBytes(std::string(1000, '9')).ok());
  EXPECT_FALSE(ParseBytes(absl::string_view("1\0GiB", 5)).ok());
}

TEST(BytesTest, Formats) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(26214400), "25.0 MiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<std::uint64_t>::max()), "16777216.0 TiB");
}

TEST(BytesTest, AlignsUp) {
  EXPECT_EQ(AlignUp(0, 256), 0U);
  EXPECT_EQ(AlignUp(1, 256), 256U);
  EXPECT_EQ(AlignUp(256, 256), 256U);
  EXPECT_EQ(AlignUp(10, 3), 12U);
}

TEST(BytesTest, CheckedArithmeticLeavesTheResultAloneWhenItDoesNotFit) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t out = 0;
  EXPECT_TRUE(CheckedMul(1ULL << 32, (1ULL << 32) - 1, &out));
  EXPECT_EQ(out, kMax - 0xffffffffULL);
  EXPECT_TRUE(CheckedAdd(kMax - 1, 1, &out));
  EXPECT_EQ(out, kMax);
  EXPECT_FALSE(CheckedMul(1ULL << 32, 1ULL << 32, &out));
  EXPECT_FALSE(CheckedAdd(kMax, 1, &out));
  EXPECT_EQ(out, kMax) << "the value from before";
}

}  // namespace
}  // namespace comoe::base
