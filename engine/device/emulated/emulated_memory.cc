#include "engine/device/emulated/emulated_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"

namespace comoe::device {

absl::StatusOr<Buffer> EmulatedMemory::Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) {
  if (kind == MemoryKind::kPinned && limits_.refuse_pinned) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no ", base::FormatBytes(bytes), " of page-locked memory: this emulated device refuses it"));
  }
  const std::uint64_t limit = Limit(kind);
  base::MutexLock lock(&mutex_);
  std::uint64_t& used = Used(kind);
  if (limit != 0 && bytes > limit - used) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", base::FormatBytes(bytes), " of emulated ",
                                                     kind == MemoryKind::kDevice ? "device" : "page-locked",
                                                     " memory (", base::FormatBytes(limit - used), " of ",
                                                     base::FormatBytes(limit), " free)"));
  }
  // A byte at least, so that no two buffers begin at one address.
  COMOE_ASSIGN_OR_RETURN(Buffer buffer,
                         host_.Allocate(MemoryKind::kHost, std::max<std::size_t>(bytes, 1), alignment));
  std::byte* data = buffer.data();
  used += bytes;
  const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), data,
                                   [](const std::byte* p, const Range& range) { return p < range.begin; });
  ranges_.insert(at, Range{data, data + buffer.size(), kind, bytes, std::move(buffer)});
  return Buffer(data, bytes, kind, [self = shared_from_this()](std::byte* freed) { self->Free(freed); });
}

void EmulatedMemory::Free(const std::byte* data) {
  base::MutexLock lock(&mutex_);
  const auto at = std::lower_bound(ranges_.begin(), ranges_.end(), data,
                                   [](const Range& range, const std::byte* p) { return range.begin < p; });
  Used(at->kind) -= at->counted_bytes;
  ranges_.erase(at);
}

MemoryKind EmulatedMemory::KindOf(const std::byte* data) const {
  base::MutexLock lock(&mutex_);
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), data,
                                      [](const std::byte* p, const Range& range) { return p < range.begin; });
  if (after == ranges_.begin() || data >= std::prev(after)->end) {
    return MemoryKind::kHost;
  }
  return std::prev(after)->kind;
}

MemoryInfo EmulatedMemory::Info(MemoryKind kind) const {
  const std::uint64_t limit = Limit(kind);
  if (limit == 0) {
    return host_.memory(MemoryKind::kHost);
  }
  base::MutexLock lock(&mutex_);
  return {limit, limit - (kind == MemoryKind::kDevice ? device_used_ : pinned_used_)};
}

std::uint64_t EmulatedMemory::Limit(MemoryKind kind) const {
  switch (kind) {
    case MemoryKind::kDevice:
      return limits_.device_bytes;
    case MemoryKind::kPinned:
      return limits_.pinned_bytes;
    case MemoryKind::kHost:
      break;
  }
  return 0;
}

std::uint64_t& EmulatedMemory::Used(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return device_used_;
    case MemoryKind::kPinned:
      return pinned_used_;
    case MemoryKind::kHost:
      break;
  }
  return host_used_;
}

}  // namespace comoe::device
