// Events of a CUDA device's streams: those that the GPU records, and those of host streams, which the GPU can
// wait for too.
//
// The GPU waits for a host event through a word of page-locked memory, which the host thread writes when its
// work is done: work that depends on the host can be queued before the host has begun, no thread has to be
// woken to queue it, and neither a callback on the stream (12 to 21 us, in which the stream stands still) nor
// a kernel that polls (where the device has stream memory operations) is needed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/sync.h"
#include "engine/device/cuda/cuda_context.h"
#include "engine/device/device.h"
#include "engine/device/emulated/event_pool.h"

namespace comoe::device {

class CudaEvents;

// Events that may yet fail, and with them what waited for them.
using CudaCauses = absl::InlinedVector<Event, 2>;

// An event of this device's, of either sort.
class CudaEventState : public Event::State {
 public:
  // Makes `stream` wait for it on the device; blocks nobody.
  virtual absl::Status QueueWait(void* stream) = 0;
  // Whether what waits for it can fail because of it, as long as it has not happened.
  virtual bool may_fail() const = 0;
};

// Recorded on a stream. Thread-safe once it is handed out.
class CudaEvent final : public CudaEventState {
 public:
  ~CudaEvent() override;
  bool Done() const override;
  absl::Status Synchronize(absl::Duration limit) override;
  double Seconds() const override;
  absl::Status QueueWait(void* stream) override;
  bool may_fail() const override { return !causes_.empty(); }

 protected:
  void Recycle() override;

 private:
  friend class CudaEvents;
  absl::Status status() const;

  CudaEvents* events_ = nullptr;
  void* event_ = nullptr;
  CudaCauses causes_;
  mutable std::atomic<bool> done_{false};
};

// Of a host stream. Thread-safe.
class CudaHostEvent final : public CudaEventState {
 public:
  bool Done() const override { return done_.load(std::memory_order_acquire); }
  absl::Status Synchronize(absl::Duration limit) override;
  double Seconds() const override;
  absl::Status QueueWait(void* stream) override;
  bool may_fail() const override { return true; }
  void Happen(const absl::Status& status);

 protected:
  void Recycle() override;

 private:
  friend class CudaEvents;

  CudaEvents* events_ = nullptr;
  std::uint32_t* word_ = nullptr;  // page-locked; nullptr: none was left
  std::uint32_t generation_ = 0;   // the word's value once it has happened
  std::atomic<bool> done_{false};
  absl::Status status_;  // written before done_
  double seconds_ = 0.0;
};

// Thread-safe. Outlives the events.
class CudaEvents {
 public:
  // `context` outlives it. `timing`: events know when they happened.
  CudaEvents(CudaContext& context, bool timing) : context_(context), timing_(timing) {}
  ~CudaEvents();
  // Before anything else.
  absl::Status Init();

  // An event of what is queued on `stream`; fails with `causes`, which it takes.
  absl::StatusOr<Event> Record(void* stream, CudaCauses& causes);
  Event MakeHostEvent();

  // Waits until `event` is done, and lets others run meanwhile. CANCELLED once *stop is set.
  static absl::Status Await(const Event& event, absl::Duration limit, const std::atomic<bool>* stop);

  // When an event happened, in CudaContext::Now()'s seconds. The two clocks drift: Align() puts them right,
  // now and then; between steps.
  double SecondsOf(void* event) const ABSL_LOCKS_EXCLUDED(mutex_);
  void Align() ABSL_LOCKS_EXCLUDED(mutex_);
  bool timing() const { return timing_; }

 private:
  friend class CudaEvent;
  friend class CudaHostEvent;
  absl::Status AlignLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  CudaContext& context_;
  const bool timing_;
  std::byte* words_ = nullptr;  // page-locked
  std::atomic<std::size_t> words_used_{0};
  void* clock_stream_ = nullptr;

  mutable base::Mutex mutex_;
  void* origin_ ABSL_GUARDED_BY(mutex_) = nullptr;  // an event, and when it happened
  void* next_origin_ ABSL_GUARDED_BY(mutex_) = nullptr;
  double origin_seconds_ ABSL_GUARDED_BY(mutex_) = 0.0;

  base::Mutex host_mutex_;
  base::CondVar host_changed_;  // a host event has happened

  EventPool<CudaEvent> pool_;
  EventPool<CudaHostEvent> host_pool_;
};

}  // namespace comoe::device
