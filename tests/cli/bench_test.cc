// The parts of `comoe bench` that are not measurements.
#include "cli/bench.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BenchTest, Lists) {
  EXPECT_THAT(*ParseList("--threads", "1", 1, 8), ElementsAre(1));
  EXPECT_THAT(*ParseList("--depths", "0,128,1024", 0, 2048), ElementsAre(0, 128, 1024));
  for (const char* bad : {"", ",", "1,", "x", "0", "9", "1;2", "1.5"}) {
    const auto list = ParseList("--threads", bad, 1, 8);
    ASSERT_FALSE(list.ok()) << bad;
    EXPECT_THAT(std::string(list.status().message()), HasSubstr("--threads"));
  }
}

TEST(BenchTest, MedianOfEvenAndOddCounts) {
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({1, 9, 5, 7}), 7);
}

TEST(BenchTest, DescribesTheMachine) {
  EXPECT_EQ(Describe({1, 14.04e9, 199.6e9}), "1 thread: 14.0 GB/s of memory, 200 GFLOP/s");
  EXPECT_EQ(Describe({2, 28e9, 390e9}), "2 threads: 28.0 GB/s of memory, 390 GFLOP/s");
}

}  // namespace
}  // namespace comoe::cli
