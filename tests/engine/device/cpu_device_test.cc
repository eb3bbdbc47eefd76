// Buffers of the CPU device: aligned, apart from each other, and alive as long as they are held, although
// small ones share their memory.
#include "engine/device/cpu/cpu_device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "gtest/gtest.h"

namespace comoe::device {
namespace {

TEST(CpuDeviceTest, BuffersAreAlignedAndApart) {
  std::vector<Buffer> buffers;
  {
    const std::unique_ptr<Device> device = MakeCpuDevice(1);
    // Many small ones fill several chunks; a few are large enough for memory of their own.
    for (std::size_t i = 0; i < 100; ++i) {
      for (const std::size_t bytes :
           {std::size_t{0}, std::size_t{1}, 3000 * i, std::size_t{65} << (i % 17)}) {
        const std::size_t alignment = std::size_t{1} << (i % 13);
        absl::StatusOr<Buffer> buffer = device->Allocate(MemoryKind::kDevice, bytes, alignment);
        ASSERT_TRUE(buffer.ok()) << buffer.status();
        EXPECT_EQ(buffer->size(), bytes);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % std::max<std::size_t>(alignment, 64),
                  0U);
        std::memset(buffer->data(), static_cast<int>(buffers.size() % 251), bytes);
        buffers.push_back(*std::move(buffer));
        if (i % 3 == 0) {
          buffers[i] = Buffer();  // a gap: freed before its neighbours
        }
      }
    }
  }
  // The device is gone, and every byte still has the value that its own buffer wrote.
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto value = static_cast<std::byte>(i % 251);
    EXPECT_EQ(std::count(buffers[i].data(), buffers[i].data() + buffers[i].size(), value),
              static_cast<std::ptrdiff_t>(buffers[i].size()))
        << "buffer " << i;
  }
}

TEST(CpuDeviceTest, TooLargeIsRefused) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  GTEST_SKIP() << "a sanitizer's allocator ends the program instead";
#endif
  const std::unique_ptr<Device> device = MakeCpuDevice(1);
  const absl::StatusOr<Buffer> buffer = device->Allocate(MemoryKind::kDevice, std::size_t{1} << 62, 64);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace comoe::device
