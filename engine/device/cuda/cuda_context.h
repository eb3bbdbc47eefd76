// What the streams and events of one CUDA device share: the plugin's functions, errors, memory, event pools
// and clocks.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/sync.h"
#include "engine/device/cuda/plugin_api.h"
#include "engine/device/device.h"

namespace comoe::device {

// "cuda: cudaMalloc: cudaErrorMemoryAllocation (out of memory)". RESOURCE_EXHAUSTED for memory, UNAVAILABLE
// where there is no driver or device, else INTERNAL.
absl::Status CudaError(const CudaDeviceApi& api, int error, absl::string_view call);

// Thread-safe.
class CudaContext {
 public:
  // `plugin` outlives it.
  CudaContext(const CudaPlugin& plugin, int ordinal, bool one_stream = false)
      : plugin_(plugin), ordinal_(ordinal), one_stream_(one_stream) {}
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const CudaDeviceApi& api() const { return *plugin_.device; }
  const CudaPlugin& plugin() const { return plugin_; }
  int ordinal() const { return ordinal_; }
  // Makes it the calling thread's device. Before whatever belongs to one: launches, records, allocations.
  void Enter() const {
    if (ordinal_ != 0) {  // a thread begins with device 0
      api().set_device(ordinal_);
    }
  }

  bool one_stream() const { return one_stream_; }
  // A stream of its own, or with `one_stream` the same one always.
  absl::StatusOr<void*> MakeStream(bool high_priority) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropStream(void* stream);

  // OK for 0, else CudaError; one that poisons the context is remembered.
  absl::Status Check(int error, absl::string_view call) {
    return error == 0 ? absl::OkStatus() : Fail(error, call);
  }
  // An error of a call that says that the device is at its end, although the error by itself need not:
  // remembered as one that does.
  void Lose(int error, absl::string_view call) ABSL_LOCKS_EXCLUDED(mutex_);
  // The error after which nothing on this device succeeds any more; OK before.
  absl::Status poison() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool poisoned() const { return poisoned_.load(std::memory_order_acquire); }

  // What the byte at `data` counts as: kHost where no buffer lies.
  MemoryKind KindOf(const std::byte* data) const ABSL_LOCKS_EXCLUDED(mutex_);
  void AddRange(const std::byte* data, std::size_t bytes, MemoryKind kind) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveRange(const std::byte* data) ABSL_LOCKS_EXCLUDED(mutex_);
  std::uint64_t pinned_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The direction of a copy between such kinds of memory; none within the device.
  static std::optional<base::CopyDirection> DirectionOf(MemoryKind source, MemoryKind target);

  // Counts a copy across the link from or to memory that is not page-locked.
  void CountPageable() { pageable_copies_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t pageable_copies() const { return pageable_copies_.load(std::memory_order_relaxed); }

  // Seconds of the host's clock since the context was made.
  double Now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count();
  }

 private:
  struct Range {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    MemoryKind kind = MemoryKind::kHost;
  };
  absl::Status Fail(int error, absl::string_view call) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Poison(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mutex_);

  const CudaPlugin& plugin_;
  const int ordinal_;
  const bool one_stream_;
  const std::chrono::steady_clock::time_point origin_ = std::chrono::steady_clock::now();
  std::atomic<bool> poisoned_{false};
  std::atomic<std::uint64_t> pageable_copies_{0};
  mutable base::Mutex mutex_;
  absl::Status poison_ ABSL_GUARDED_BY(mutex_);
  void* the_stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // with one_stream
  std::vector<Range> ranges_ ABSL_GUARDED_BY(mutex_);   // by address
  std::uint64_t pinned_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace comoe::device
