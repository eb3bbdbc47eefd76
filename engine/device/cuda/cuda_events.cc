#include "engine/device/cuda/cuda_events.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/deadline.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace comoe::device {
namespace {

// Host events that exist at once. The GPU waits for a few of them, but every expert on the host may keep one
// or two that have happened: of those who read it last.
constexpr std::size_t kWords = std::size_t{1} << 17;
// Clocks that differ by 50 parts in a million are 50 us apart after this; an event's time is a float of
// milliseconds, exact to 0.1 us by then.
constexpr double kAlignSeconds = 1.0;
// Between asking for an event and hearing of it lie some ten microseconds, unless the thread is held up: then
// nobody knows when in between it happened, and the best of a few tries counts.
constexpr double kAlignWithinSeconds = 1e-4;
constexpr int kAlignTries = 10;
// A thread that waits for the GPU looks that often before it sleeps between looks.
constexpr int kEagerLooks = 2000;
constexpr std::chrono::microseconds kNap(20);

absl::Status NotInTime(absl::Duration limit) {
  return absl::DeadlineExceededError(
      absl::StrCat("cuda: what was waited for has not happened within ", absl::FormatDuration(limit)));
}

}  // namespace

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) {
    events_->context_.api().destroy_event(event_);
  }
}

bool CudaEvent::Done() const {
  if (done_.load(std::memory_order_acquire)) {
    return true;
  }
  const int result = events_->context_.api().query_event(event_);
  if (result == kCudaNotReady) {
    return false;
  }
  if (result != 0) {
    // An error is the device's end, whichever it is: nothing will ever happen any more, nobody shall wait for
    // it, and nobody shall take it for done.
    events_->context_.Lose(result, "cudaEventQuery");
  }
  done_.store(true, std::memory_order_release);
  return true;
}

absl::Status CudaEvent::status() const {
  COMOE_RETURN_IF_ERROR(events_->context_.poison());
  for (const Event& cause : causes_) {
    COMOE_RETURN_IF_ERROR(cause.Synchronize(absl::ZeroDuration()));
  }
  return absl::OkStatus();
}

absl::Status CudaEvent::Synchronize(absl::Duration limit) {
  if (Done()) {
    return status();
  }
  if (limit != absl::InfiniteDuration()) {
    return CudaEvents::Await(Event(this), limit, nullptr);
  }
  COMOE_RETURN_IF_ERROR(
      events_->context_.Check(events_->context_.api().synchronize_event(event_), "cudaEventSynchronize"));
  done_.store(true, std::memory_order_release);
  return status();
}

double CudaEvent::Seconds() const {
  return events_->timing() && Done() && !events_->context_.poisoned()
             ? events_->SecondsOf(event_)
             : std::numeric_limits<double>::quiet_NaN();
}

absl::Status CudaEvent::QueueWait(void* stream) {
  return events_->context_.Check(events_->context_.api().wait_event(stream, event_), "cudaStreamWaitEvent");
}

void CudaEvent::Recycle() {
  causes_.clear();
  events_->pool_.Put(this);
}

absl::Status CudaHostEvent::Synchronize(absl::Duration limit) {
  const base::Deadline deadline(limit);
  base::MutexLock lock(&events_->host_mutex_);
  while (!Done()) {
    if (deadline.infinite()) {
      events_->host_changed_.Wait(&events_->host_mutex_);
    } else if (deadline.passed()) {
      return NotInTime(limit);
    } else {
      events_->host_changed_.WaitWithTimeout(&events_->host_mutex_, deadline.left());
    }
  }
  return status_;
}

double CudaHostEvent::Seconds() const { return Done() ? seconds_ : std::numeric_limits<double>::quiet_NaN(); }

absl::Status CudaHostEvent::QueueWait(void* stream) {
  if (word_ == nullptr) {
    return Synchronize(absl::InfiniteDuration());
  }
  return events_->context_.Check(events_->context_.api().wait_value(stream, word_, generation_),
                                 "cuStreamWaitValue32");
}

void CudaHostEvent::Happen(const absl::Status& status) {
  base::MutexLock lock(&events_->host_mutex_);
  status_ = status;
  seconds_ = events_->context_.Now();
  done_.store(true, std::memory_order_release);
  if (word_ != nullptr) {
    __atomic_store_n(word_, generation_, __ATOMIC_RELEASE);
  }
  events_->host_changed_.SignalAll();
}

void CudaHostEvent::Recycle() { events_->host_pool_.Put(this); }

CudaEvents::~CudaEvents() {
  const CudaDeviceApi& api = context_.api();
  if (clock_stream_ != nullptr) {
    api.destroy_stream(clock_stream_);
  }
  {
    base::MutexLock lock(&mutex_);
    for (void* const event : {origin_, next_origin_}) {
      if (event != nullptr) {
        api.destroy_event(event);
      }
    }
  }
  if (words_ != nullptr) {
    api.release_pinned(words_);
  }
}

absl::Status CudaEvents::Init() {
  context_.Enter();
  const CudaDeviceApi& api = context_.api();
  void* words = nullptr;
  void* on_device = nullptr;
  COMOE_RETURN_IF_ERROR(context_.Check(
      api.allocate_pinned(&words, &on_device, kWords * sizeof(std::uint32_t)), "cudaHostAlloc"));
  words_ = static_cast<std::byte*>(words);
  if (on_device != words) {
    return absl::UnavailableError("cuda: host and device do not share one address space");
  }
  std::memset(words_, 0, kWords * sizeof(std::uint32_t));
  if (!timing_) {
    return absl::OkStatus();
  }
  COMOE_RETURN_IF_ERROR(context_.Check(api.create_stream(&clock_stream_, 1), "cudaStreamCreate"));
  base::MutexLock lock(&mutex_);
  COMOE_RETURN_IF_ERROR(context_.Check(api.create_event(&origin_, 1), "cudaEventCreate"));
  COMOE_RETURN_IF_ERROR(context_.Check(api.create_event(&next_origin_, 1), "cudaEventCreate"));
  return AlignLocked();
}

absl::Status CudaEvents::AlignLocked() {
  const CudaDeviceApi& api = context_.api();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kAlignTries && best > kAlignWithinSeconds; ++i) {
    const double before = context_.Now();
    COMOE_RETURN_IF_ERROR(context_.Check(api.record_event(next_origin_, clock_stream_), "cudaEventRecord"));
    COMOE_RETURN_IF_ERROR(context_.Check(api.synchronize_event(next_origin_), "cudaEventSynchronize"));
    const double after = context_.Now();
    if (after - before < best) {
      best = after - before;
      origin_seconds_ = (before + after) / 2.0;
      std::swap(origin_, next_origin_);
    }
  }
  return absl::OkStatus();
}

void CudaEvents::Align() {
  base::MutexLock lock(&mutex_);
  if (timing_ && context_.Now() - origin_seconds_ > kAlignSeconds) {
    context_.Enter();
    AlignLocked().IgnoreError();  // a poisoned context; whoever works with it hears of it
  }
}

double CudaEvents::SecondsOf(void* event) const {
  base::MutexLock lock(&mutex_);
  float milliseconds = 0.0F;
  if (const int error = context_.api().elapsed(&milliseconds, origin_, event); error != 0) {
    context_.api().take_last_error();
    return std::numeric_limits<double>::quiet_NaN();
  }
  return origin_seconds_ + static_cast<double>(milliseconds) * 1e-3;
}

absl::StatusOr<Event> CudaEvents::Record(void* stream, CudaCauses& causes) {
  context_.Enter();
  CudaEvent* state = pool_.Take();
  Event event(state);  // goes back to the pool when what follows fails
  state->events_ = this;
  state->done_.store(true, std::memory_order_relaxed);
  if (state->event_ == nullptr) {
    COMOE_RETURN_IF_ERROR(
        context_.Check(context_.api().create_event(&state->event_, timing_ ? 1 : 0), "cudaEventCreate"));
  }
  COMOE_RETURN_IF_ERROR(
      context_.Check(context_.api().record_event(state->event_, stream), "cudaEventRecord"));
  state->causes_ = std::exchange(causes, {});
  state->done_.store(false, std::memory_order_release);
  return event;
}

Event CudaEvents::MakeHostEvent() {
  CudaHostEvent* state = host_pool_.Take();
  if (state->events_ == nullptr) {
    state->events_ = this;
    const std::size_t word = words_used_.fetch_add(1, std::memory_order_relaxed);
    state->word_ = word < kWords ? reinterpret_cast<std::uint32_t*>(words_) + word : nullptr;
    if (word == kWords) {
      base::Logf(
          base::LogLevel::kWarning, "device",
          "cuda: more than %d ends of host work are kept: for others the host waits instead of the GPU",
          kWords);
    }
  }
  state->done_.store(false, std::memory_order_relaxed);
  state->status_ = absl::OkStatus();
  ++state->generation_;
  return Event(state);
}

absl::Status CudaEvents::Await(const Event& event, absl::Duration limit, const std::atomic<bool>* stop) {
  if (limit == absl::ZeroDuration() && !event.Done()) {
    return NotInTime(limit);
  }
  const base::Deadline deadline(limit);
  for (int look = 0; !event.Done(); ++look) {
    if (stop != nullptr && stop->load()) {
      return absl::CancelledError("cuda: the stream that waited is gone");
    }
    if (look < kEagerLooks) {
      std::this_thread::yield();
      continue;
    }
    if (deadline.passed()) {
      return NotInTime(limit);
    }
    std::this_thread::sleep_for(kNap);
  }
  return event.Synchronize();
}

}  // namespace comoe::device
