#include "engine/base/host.h"

#include <thread>
#include <vector>

#include "engine/base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace comoe::base {
namespace {

TEST(HostTest, MemoryIsWithinItsLimit) {
  const HostMemory memory = ReadHostMemory();
  EXPECT_GT(memory.limit_bytes, 16U << 20);
  EXPECT_GT(memory.available_bytes, 0U);
  EXPECT_LE(memory.available_bytes, memory.limit_bytes);
  EXPECT_THAT(memory.source, ::testing::AnyOf("cgroup v2", "cgroup v1", "/proc/meminfo"));
}

TEST(HostTest, ResidentMemoryGrowsWithWhatIsTouched) {
  constexpr std::size_t kBytes = 64U << 20;
  const std::uint64_t before = ResidentBytes();
  EXPECT_GT(before, 0U);
  std::vector<char> memory(kBytes);
  volatile char* const touched = memory.data();  // else the compiler may do without the memory
  for (std::size_t i = 0; i < kBytes; i += 4096) {
    touched[i] = 1;
  }
  EXPECT_GE(ResidentBytes() + (4U << 20), before + kBytes);
  EXPECT_GE(PeakResidentBytes() + (4U << 20), ResidentBytes());
}

TEST(HostTest, UsableCoresAreSome) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), 65536);
}

}  // namespace
}  // namespace comoe::base
