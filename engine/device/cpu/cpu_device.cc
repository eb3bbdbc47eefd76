#include "engine/device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/sync.h"

namespace comoe::device {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Smaller buffers share chunks of this, or each matrix of a small model would lie on pages of its own.
constexpr std::size_t kChunkBytes = 4 * kHugePageBytes;
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
constexpr bool kShareChunks = false;  // so that it sees the end of each buffer
#else
constexpr bool kShareChunks = true;
#endif

// Named, because GCC 12 takes the empty state of a lambda in an AnyInvocable for uninitialised.
void FreeBytes(std::byte* data) { std::free(data); }

// Has the system give the pages now: at first touch, in a step, it would take longer than the step. Where it
// cannot (an old kernel, no memory), they come at first touch.
void Populate(void* data, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  const std::size_t begin = base::AlignUp(reinterpret_cast<std::uintptr_t>(data), kPageBytes);
  const std::size_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kPageBytes * kPageBytes;
  if (end > begin) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  }
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

// Memory on huge pages, or nullptr: weights are read from end to end, and 4 KiB pages cost TLB misses.
std::byte* AllocateHugePages(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = base::AlignUp(bytes, alignment);
  void* data = std::aligned_alloc(alignment, rounded);
  if (data != nullptr) {
    ::madvise(data, rounded, MADV_HUGEPAGE);  // advice: without huge pages it is slower, not wrong
    Populate(data, rounded);
  }
  return static_cast<std::byte*>(data);
}

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct FreeChunk {
  void operator()(std::byte* data) const { std::free(data); }
};

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
    const std::size_t align = std::max(alignment, std::size_t{64});
    if (kShareChunks && bytes < kHugePageBytes && align <= kHugePageBytes) {
      base::MutexLock lock(&mutex_);
      std::size_t offset = base::AlignUp(chunk_used_, align);
      if (chunk_ == nullptr || offset + bytes > kChunkBytes) {
        std::byte* data = AllocateHugePages(kChunkBytes, kHugePageBytes);
        if (data == nullptr) {
          return OutOfMemory(kind, bytes);
        }
        chunk_ = std::shared_ptr<std::byte>(data, FreeChunk());
        offset = 0;
      }
      chunk_used_ = offset + bytes;
      // The chunk lives as long as one of its buffers.
      return Buffer(chunk_.get() + offset, bytes, kind, [chunk = chunk_](std::byte*) {});
    }
    std::byte* data = AllocateHugePages(std::max<std::size_t>(bytes, 1), std::max(align, kHugePageBytes));
    if (data == nullptr) {
      return OutOfMemory(kind, bytes);
    }
    return Buffer(data, bytes, kind, &FreeBytes);
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name, StreamKind /*kind*/) override {
    return std::make_unique<CpuStream>(pool_, std::string(name), &timeline_);
  }

  // Work is done when it is queued, so that every event has happened.
  void Notify(const Event& /*event*/, EventListener& listener, std::uint64_t tag) override {
    listener.OnEvent(tag);
  }

  double Now() const override { return SecondsNow(); }
  void SetTimeline(TimelineSink* sink) override { timeline_.sink = sink; }

 private:
  absl::Status OutOfMemory(MemoryKind kind, std::size_t bytes) const {
    return absl::ResourceExhaustedError(absl::StrCat("no ", base::FormatBytes(bytes), " of host memory (",
                                                     base::FormatBytes(memory(kind).free_bytes),
                                                     " available)"));
  }

  base::ThreadPool pool_;
  CpuTimeline timeline_;
  base::Mutex mutex_;
  std::shared_ptr<std::byte> chunk_ ABSL_GUARDED_BY(mutex_);  // the one that is being filled
  std::size_t chunk_used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::Status CpuStream::CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

void CpuStream::SetStage(const base::Stage& stage) {
  if (timeline_ == nullptr || timeline_->sink == nullptr) {
    return;
  }
  EndStage();
  stage_ = stage;
  stage_begin_ = SecondsNow();
}

absl::Status CpuStream::Synchronize() {
  EndStage();
  return absl::OkStatus();
}

void CpuStream::EndStage() {
  if (stage_begin_ >= 0.0 && timeline_->sink != nullptr) {
    timeline_->sink->Add(name_, stage_, std::nullopt, stage_begin_, SecondsNow(), 0);
  }
  stage_begin_ = -1.0;
}

std::unique_ptr<Device> MakeCpuDevice(int num_threads) { return std::make_unique<CpuDevice>(num_threads); }

}  // namespace comoe::device
