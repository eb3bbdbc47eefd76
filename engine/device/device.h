// The device seam: memory, buffers, streams, events and copies, the same for every kind of device. Code above
// it never asks which kind it runs on, except kernels, which are written per kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace comoe::device {

enum class DeviceKind { kCpu, kEmulated, kCuda };
absl::string_view DeviceKindName(DeviceKind kind);

struct DeviceId {
  DeviceKind kind = DeviceKind::kCpu;
  int ordinal = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

// Where bytes lie: kHost pageable memory, kPinned page-locked host memory, kDevice the device's own.
// On the CPU device all three are host memory.
enum class MemoryKind { kHost, kPinned, kDevice };

// Owns bytes; move-only; freed on destruction. Whoever frees a buffer makes sure that no copy or kernel still
// uses it (fence by event).
class Buffer {
 public:
  using Deleter = absl::AnyInvocable<void(std::byte*)>;

  Buffer() = default;
  Buffer(std::byte* data, std::size_t size, MemoryKind kind, Deleter deleter)
      : data_(data), size_(size), kind_(kind), deleter_(std::move(deleter)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  MemoryKind kind_ = MemoryKind::kHost;
  Deleter deleter_;
};

// A point in a stream's work. Copyable; thread-safe. A default-constructed event has already happened.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool Done() const = 0;
    virtual absl::Status Synchronize() = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool Done() const { return state_ == nullptr || state_->Done(); }
  // Blocks the calling thread until the event has happened.
  absl::Status Synchronize() const { return state_ == nullptr ? absl::OkStatus() : state_->Synchronize(); }
  State* state() const { return state_.get(); }

 private:
  std::shared_ptr<State> state_;
};

// Work in order. Used by one thread at a time. Nothing runs on a default stream.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceId device() const = 0;
  // Copies `bytes` after all work queued before; both ends must live until an event recorded after it has
  // happened, and a host end should be pinned (a pageable one makes the copy synchronous and slow).
  virtual absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) = 0;
  // An event that happens when all work queued so far is done.
  virtual absl::StatusOr<Event> Record() = 0;
  // Work queued after this waits for `event`, which may belong to another stream. Does not block the caller.
  virtual absl::Status Wait(const Event& event) = 0;
  // Blocks the caller until all queued work is done, and reports its first error.
  virtual absl::Status Synchronize() = 0;
};

struct MemoryInfo {
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
};

// Thread-safe. Outlives its buffers, streams and events.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceId id() const = 0;
  // One line for people: which device, and what it has.
  virtual std::string Describe() const = 0;
  virtual MemoryInfo memory(MemoryKind kind) const = 0;
  // RESOURCE_EXHAUSTED, with bytes asked and free, when it does not fit. Alignment is a power of two. The
  // content is undefined. Never called in a step.
  virtual absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) = 0;
  // `name` appears in timelines.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) = 0;
};

}  // namespace comoe::device
