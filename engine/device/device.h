// The device seam: memory, buffers, streams, events and copies, the same for every kind of device. Code above
// it never asks which kind it runs on, except kernels, which are written per kind.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "engine/base/stage.h"

namespace comoe::device {

class CpuStream;

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

// A point in a stream's work. Copyable; thread-safe. A default-constructed event has already happened. States
// come from their device's pool: recording an event allocates nothing once the pool has grown.
class Event {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual bool Done() const = 0;
    // Blocks until the event has happened; the error of the work before it, if it failed. DEADLINE_EXCEEDED
    // after `limit` on the device's clock: the work may still happen.
    virtual absl::Status Synchronize(absl::Duration limit) = 0;
    // When it happened, in seconds on the device's clock; NaN before, and on devices without one.
    virtual double Seconds() const = 0;

    void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
    void Unref() {
      if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        Recycle();
      }
    }

   protected:
    // Nobody refers to it any more: back to the pool.
    virtual void Recycle() = 0;

   private:
    std::atomic<std::int32_t> references_{0};
  };

  Event() = default;
  explicit Event(State* state) : state_(state) { Ref(); }
  Event(const Event& other) : state_(other.state_) { Ref(); }
  Event(Event&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Event& operator=(Event other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Event() {
    if (state_ != nullptr) {
      state_->Unref();
    }
  }

  bool Done() const { return state_ == nullptr || state_->Done(); }
  // Blocks the calling thread until the event has happened.
  absl::Status Synchronize(absl::Duration limit = absl::InfiniteDuration()) const {
    return state_ == nullptr ? absl::OkStatus() : state_->Synchronize(limit);
  }
  State* state() const { return state_; }

 private:
  void Ref() const {
    if (state_ != nullptr) {
      state_->Ref();
    }
  }

  State* state_ = nullptr;
};

// What a stream is for: the lanes of a step's graph.
enum class StreamKind {
  kCompute,  // kernels on the device
  kCopy,     // copies between host and device
  kHost      // the host at the same time: experts computed where they lie, copies within host memory
};

// Work in order. Used by one thread at a time. Nothing runs on a default stream.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceId device() const = 0;
  // The stream whose thread pool kernels that run on the host use now: itself or what it wraps. nullptr where
  // kernels are written for the device.
  virtual CpuStream* cpu() { return nullptr; }

  // Labels the work queued from now on, for reports and timelines.
  virtual void SetStage(const base::Stage& /*stage*/) {}
  // What is queued between the two belongs to a step: for profilers.
  virtual void BeginStep(base::StepId /*step*/) {}
  virtual void EndStep() {}
  // Copies `bytes` after all work queued before; both ends must live until an event recorded after it has
  // happened, and a host end should be pinned (a pageable one makes the copy synchronous and slow).
  virtual absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) = 0;
  // Compute streams of devices whose memory is out of the host's reach: writes `bytes` bytes, which are read
  // during the call, to device memory after all work queued before. For a few KiB that must not queue behind
  // copies: they travel with the queue. `target` is aligned to 16 bytes, and up to 15 bytes after them are
  // written too.
  virtual absl::Status Put(std::byte* target, const void* data, std::size_t bytes);
  // Streams of kind kHost: runs `work` after all work queued before, maybe on another thread and later; it
  // gets a stream for kernels. `work` and all it refers to live until an event recorded after it has
  // happened.
  class HostWork {
   public:
    virtual ~HostWork() = default;
    virtual absl::Status Run(Stream& stream) = 0;
  };
  virtual absl::Status Submit(HostWork& work);
  // From within a HostWork: it has read `bytes` from disk. For devices that simulate or measure how long that
  // takes.
  virtual void CountDiskRead(std::size_t /*bytes*/) {}
  // Compute streams of devices that can: work queued from BeginCapture to EndCapture is not run but kept, for
  // Replay to run it as often as one likes, with less to do for host and device. It keeps all addresses and
  // sizes, but reads what lies there anew. Only kernels may be queued meanwhile, and only such as were queued
  // with the same sizes before. EndCapture always follows; its error, or theirs: there is nothing to replay.
  class Captured {
   public:
    virtual ~Captured() = default;
  };
  virtual bool can_capture() const { return false; }
  virtual absl::Status BeginCapture();
  virtual absl::StatusOr<std::unique_ptr<Captured>> EndCapture();
  virtual absl::Status Replay(Captured& work);
  // Changes when something that kept work refers to has moved: then that is not to be replayed any more.
  virtual std::uint64_t capture_version() const { return 0; }
  // An event that happens when all work queued so far is done. Work that failed fails its events.
  virtual absl::StatusOr<Event> Record() = 0;
  // Work queued after this waits for `event`, which may belong to another stream, along the named edge. Does
  // not block the caller, or (where kernels run on the caller) for `limit` at most. The error of what failed,
  // where that is known already: the stream goes on without it; where it is known later only, the next event
  // recorded on this stream fails. DEADLINE_EXCEEDED: it has not happened within `limit`.
  virtual absl::Status Wait(const Event& event, base::WaitEdge edge,
                            absl::Duration limit = absl::InfiniteDuration()) = 0;
  // Blocks the caller until all queued work is done, and reports its first error.
  virtual absl::Status Synchronize() = 0;

 private:
  friend class HoldUp;
  virtual void BeginHoldUp(base::WaitEdge /*edge*/) {}
  virtual void EndHoldUp() {}

  int hold_ups_ = 0;
};

// While it lives, who queues a compute stream's work is held up and queues none there: what time passes after
// the work queued before is done is the stream's waiting along `edge`. For who uses the stream. One within
// another changes nothing. nullptr: nobody is held up.
class [[nodiscard]] HoldUp {
 public:
  HoldUp(Stream* stream, base::WaitEdge edge) : stream_(stream) {
    if (stream_ != nullptr && stream_->hold_ups_++ == 0) {
      stream_->BeginHoldUp(edge);
    }
  }
  ~HoldUp() {
    if (stream_ != nullptr && --stream_->hold_ups_ == 0) {
      stream_->EndHoldUp();
    }
  }
  HoldUp(const HoldUp&) = delete;
  HoldUp& operator=(const HoldUp&) = delete;

 private:
  Stream* const stream_;
};

// Sums since the device was made, in seconds on its clock.
struct DeviceTimes {
  double compute = 0;                                               // compute stream at work
  base::PerKind<double, base::kNumStageKinds> compute_stages;       // of it, by what the work was labelled as
  base::PerKind<double, base::kNumWaitEdges> stalled;               // compute stream waiting, by edge
  base::PerKind<double, base::kNumCopyDirections> copy_busy;        // at least one copy under way
  base::PerKind<double, base::kNumCopyDirections> copy_overlapped;  // of it, while the compute stream worked
  double host_lane = 0;                                             // host experts being computed
};

// Hears spans of work as they end; called from any thread, and not for long.
class TimelineSink {
 public:
  virtual ~TimelineSink() = default;
  // `lane` is a stream's name and lives as long as the device. A wait has its edge, work has none.
  virtual void Add(absl::string_view lane, const base::Stage& stage, std::optional<base::WaitEdge> edge,
                   double begin_seconds, double end_seconds, std::size_t bytes) = 0;
};

// Told that an event has happened.
class EventListener {
 public:
  virtual ~EventListener() = default;
  virtual void OnEvent(std::uint64_t tag) = 0;
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
  // Whether the host may read and write device memory as its own. Where it may not, bytes get there and back
  // by copies on streams.
  virtual bool host_accessible() const { return true; }
  // Whether its kernels read dense weight matrices row after row, and not in panels (tensor::MatrixOrder).
  virtual bool row_major_weights() const { return false; }
  // Not OK once the device has failed for good: whatever is asked of it fails from then on.
  virtual absl::Status health() const { return absl::OkStatus(); }
  // RESOURCE_EXHAUSTED, with bytes asked and free, when it does not fit. Alignment is a power of two. The
  // content is undefined. Not called in a step, but for scratch of a CUDA stream that a step is the first to
  // need so much of.
  virtual absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) = 0;
  // `name` appears in timelines.
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name, StreamKind kind) = 0;
  // Calls listener.OnEvent(tag) once `event` has happened, failed or not: on a thread of the device's, or,
  // where time is simulated, from within whatever call lets it pass. At once, if it has happened already.
  // `listener` outlives that.
  virtual void Notify(const Event& event, EventListener& listener, std::uint64_t tag) = 0;
  // Seconds on the device's clock.
  virtual double Now() const = 0;
  // Whether that clock is a calculation, which real time has nothing to do with.
  virtual bool simulated() const { return false; }
  // All zero where nothing is measured (the CPU device).
  virtual DeviceTimes times() const { return {}; }
  // Spans go to `sink` from now on; nullptr: nowhere. Between steps only. `sink` outlives that.
  virtual void SetTimeline(TimelineSink* sink) = 0;
};

}  // namespace comoe::device
