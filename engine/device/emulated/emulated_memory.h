// The buffers of an emulated accelerator: host memory, with a note of what each is to be taken for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/sync.h"
#include "engine/device/device.h"

namespace comoe::device {

// Thread-safe. Lives as long as one of its buffers.
class EmulatedMemory : public std::enable_shared_from_this<EmulatedMemory> {
 public:
  struct Limits {
    std::uint64_t device_bytes = 0;  // 0: none
    std::uint64_t pinned_bytes = 0;
    bool refuse_pinned = false;
  };
  // `host` allocates, and outlives this only as far as its buffers need it.
  EmulatedMemory(Device& host, const Limits& limits) : host_(host), limits_(limits) {}

  // RESOURCE_EXHAUSTED says what was asked and what is free.
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What the byte at `data` counts as: kHost where no buffer lies.
  MemoryKind KindOf(const std::byte* data) const ABSL_LOCKS_EXCLUDED(mutex_);
  MemoryInfo Info(MemoryKind kind) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    MemoryKind kind = MemoryKind::kHost;
    std::uint64_t counted_bytes = 0;
    Buffer buffer;
  };

  void Free(const std::byte* data) ABSL_LOCKS_EXCLUDED(mutex_);
  std::uint64_t Limit(MemoryKind kind) const;
  std::uint64_t& Used(MemoryKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Device& host_;
  const Limits limits_;
  mutable base::Mutex mutex_;
  std::vector<Range> ranges_ ABSL_GUARDED_BY(mutex_);  // by address
  std::uint64_t device_used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t pinned_used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::uint64_t host_used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace comoe::device
