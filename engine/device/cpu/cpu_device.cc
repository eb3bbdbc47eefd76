#include "engine/device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"

namespace comoe::device {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Named, because GCC 12 takes the empty state of a lambda in an AnyInvocable for uninitialised.
void FreeBytes(std::byte* data) { std::free(data); }

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int num_threads) : pool_(num_threads, "comoe-compute") {}

  DeviceId id() const override { return {DeviceKind::kCpu, 0}; }

  std::string Describe() const override {
    return absl::StrCat("cpu: ", pool_.num_threads(), " compute threads, ",
                        base::FormatBytes(base::ReadHostMemory().available_bytes), " of memory available");
  }

  MemoryInfo memory(MemoryKind /*kind*/) const override {
    const base::HostMemory host = base::ReadHostMemory();
    return {host.limit_bytes, host.available_bytes};
  }

  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) override {
    // Large buffers start on a huge page: weights are read from end to end, and 4 KiB pages cost TLB misses.
    const bool large = bytes >= kHugePageBytes;
    const std::size_t align = std::max({alignment, sizeof(void*), large ? kHugePageBytes : std::size_t{64}});
    void* data = std::aligned_alloc(align, base::AlignUp(std::max<std::size_t>(bytes, 1), align));
    if (data == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no ", base::FormatBytes(bytes), " of host memory (",
                                                       base::FormatBytes(memory(kind).free_bytes),
                                                       " available)"));
    }
    if (large) {
      ::madvise(data, bytes, MADV_HUGEPAGE);  // advice: without huge pages it is slower, not wrong
    }
    return Buffer(static_cast<std::byte*>(data), bytes, kind, &FreeBytes);
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view /*name*/) override {
    return std::make_unique<CpuStream>(pool_);
  }

 private:
  base::ThreadPool pool_;
};

}  // namespace

absl::Status CpuStream::CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

std::unique_ptr<Device> MakeCpuDevice(int num_threads) { return std::make_unique<CpuDevice>(num_threads); }

CpuStream* AsCpuStream(Stream& stream) {
  return stream.device().kind == DeviceKind::kCpu ? static_cast<CpuStream*>(&stream) : nullptr;
}

}  // namespace comoe::device
