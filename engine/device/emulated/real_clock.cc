#include "engine/device/emulated/real_clock.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "engine/device/emulated/describe.h"

namespace comoe::device {

void Meeting::WaitUntil(Ticks time) {
  const Ticks left = time - Now();
  if (time == kNever) {
    changed.Wait(&mutex);
  } else if (left > 0) {
    changed.WaitWithTimeout(&mutex, absl::Nanoseconds(left / 1000 + 1));
  }
}

void RealEvent::Set(Meeting* meeting, EventPool<RealEvent>* pool) {
  meeting_ = meeting;
  pool_ = pool;
  base::MutexLock lock(&meeting_->mutex);
  phase_ = Phase::kPending;
  status_ = absl::OkStatus();
}

bool RealEvent::Done() const {
  base::MutexLock lock(&meeting_->mutex);
  return phase_ == Phase::kHappened;
}

double RealEvent::Seconds() const {
  base::MutexLock lock(&meeting_->mutex);
  return phase_ == Phase::kHappened ? ToSeconds(time_) : std::numeric_limits<double>::quiet_NaN();
}

absl::Status RealEvent::Await(absl::Duration limit, const std::atomic<bool>* stop) {
  const Ticks deadline = Deadline(meeting_->Now(), limit);
  base::MutexLock lock(&meeting_->mutex);
  while (phase_ == Phase::kPending || (phase_ == Phase::kHung && deadline != kNever)) {
    if (stop != nullptr && stop->load()) {
      return absl::CancelledError("emulated: the stream that waited is gone");
    }
    if (meeting_->Now() >= deadline) {
      return NotInTimeError(limit);
    }
    meeting_->WaitUntil(deadline);
  }
  return phase_ == Phase::kHung ? NeverEndsError() : status_;
}

void RealEvent::Happen(const absl::Status& status) {
  base::MutexLock lock(&meeting_->mutex);
  phase_ = Phase::kHappened;
  status_ = status;
  time_ = meeting_->Now();
  meeting_->changed.SignalAll();
}

void RealEvent::Hang() {
  base::MutexLock lock(&meeting_->mutex);
  phase_ = Phase::kHung;
  meeting_->changed.SignalAll();
}

void RealEvent::Recycle() { pool_->Put(this); }

RealClock::RealClock(const EmulatedOptions& options, const EmulatedMemory& memory)
    : options_(options), memory_(memory), costs_(options.rates) {}

LaneId RealClock::AddLane(absl::string_view name, StreamKind kind) {
  base::MutexLock lock(&mutex_);
  lanes_.push_back(std::make_unique<Lane>(Lane{std::string(name), kind}));
  return lanes_.size() - 1;
}

const std::string& RealClock::lane_name(LaneId lane) const {
  base::MutexLock lock(&mutex_);
  return lanes_[lane]->name;
}

StreamKind RealClock::lane_kind(LaneId lane) const {
  base::MutexLock lock(&mutex_);
  return lanes_[lane]->kind;
}

Event RealClock::MakeEvent() {
  RealEvent* state = events_.Take();
  state->Set(&meeting_, &events_);
  return Event(state);
}

// Notify looks under the mutex whether the event has happened, and this takes it afterwards: nobody is
// forgotten.
void RealClock::Happen(const Event& event, const absl::Status& status) {
  static_cast<RealEvent*>(event.state())->Happen(status);
  for (;;) {
    Notice notice;
    {
      base::MutexLock lock(&notices_mutex_);
      const auto found = std::find_if(notices_.begin(), notices_.end(), [&](const Notice& candidate) {
        return candidate.event.state() == event.state();
      });
      if (found == notices_.end()) {
        return;
      }
      notice = std::move(*found);
      notices_.erase(found);
    }
    notice.listener->OnEvent(notice.tag);
  }
}

void RealClock::Notify(const Event& event, EventListener& listener, std::uint64_t tag) {
  {
    base::MutexLock lock(&notices_mutex_);
    if (!event.Done()) {
      notices_.push_back({event, &listener, tag});
      return;
    }
  }
  listener.OnEvent(tag);
}

RealCopy RealClock::PrepareCopy(std::byte* target, const std::byte* source, std::size_t bytes,
                                const base::Stage& stage) {
  RealCopy copy = {target, source, bytes, stage, RouteOf(memory_.KindOf(source), memory_.KindOf(target)), {}};
  if (copy.route.direction.has_value() && options_.copy_faults != nullptr) {
    copy.fault = options_.copy_faults({stage, bytes, *copy.route.direction, copies_.fetch_add(1)});
  }
  return copy;
}

absl::Status RealClock::RunCopy(LaneId lane, const RealCopy& copy, const std::atomic<bool>* stop) {
  const bool fails = copy.fault.kind == CopyFault::Kind::kFail;
  const Ticks takes = costs_.Copy(copy.route, copy.bytes);
  // Within the device it is work of the device, not of a direction.
  const base::CopyDirection direction = copy.route.direction.value_or(base::CopyDirection::kHostToHost);
  const Ticks begin =
      copy.route.direction.has_value() ? Open(lane, direction, copy.route.link, takes) : Now();
  if (!fails) {
    std::memcpy(copy.target, copy.source, copy.bytes);
  }
  SleepUntil(After(begin, takes), stop);
  Ticks end = Now();
  if (copy.route.direction.has_value()) {
    end = Close(lane, direction, begin);
  }
  timeline_.Add(lane_name(lane), copy.stage, std::nullopt, begin, end, copy.bytes);
  SleepUntil(After(end, ToTicks(copy.fault.late_seconds)), stop);
  return fails ? copy.fault.status : absl::OkStatus();
}

void RealClock::RunDiskRead(LaneId lane, std::size_t bytes, const base::Stage& stage,
                            const std::atomic<bool>* stop) {
  const Ticks takes = costs_.DiskRead(bytes);
  const Ticks begin = Open(lane, base::CopyDirection::kDiskToHost, true, takes);
  SleepUntil(After(begin, takes), stop);
  const Ticks end = Close(lane, base::CopyDirection::kDiskToHost, begin);
  timeline_.Add(lane_name(lane), stage, std::nullopt, begin, end, bytes);
}

Ticks RealClock::Open(LaneId lane, base::CopyDirection direction, bool shared, Ticks takes) {
  base::MutexLock lock(&mutex_);
  Ticks begin = Now();
  if (shared) {
    begin = std::max(begin, link_free_[direction]);
    link_free_[direction] = After(begin, takes);
  }
  lanes_[lane]->open = begin;
  return begin;
}

Ticks RealClock::Close(LaneId lane, base::CopyDirection direction, Ticks begin) {
  base::MutexLock lock(&mutex_);
  const Ticks end = std::max(Now(), begin);
  meter_.AddCopy(direction, begin, end);
  lanes_[lane]->open = kNever;
  SettleLocked();
  return end;
}

Ticks RealClock::BeginKernel(LaneId lane) {
  base::MutexLock lock(&mutex_);
  const Ticks begin = Now();
  if (lanes_[lane]->kind == StreamKind::kCompute) {
    lanes_[lane]->open = begin;
  }
  return begin;
}

Ticks RealClock::EndKernel(LaneId lane, base::StageKind stage, Ticks begin) {
  base::MutexLock lock(&mutex_);
  const Ticks end = Now();
  if (lanes_[lane]->kind == StreamKind::kCompute) {
    meter_.AddCompute(stage, begin, end);
    compute_ += end - begin;
    stages_[stage] += end - begin;
    lanes_[lane]->open = kNever;
  } else {
    host_lane_ += end - begin;
  }
  return end;
}

void RealClock::AddStall(base::WaitEdge edge, Ticks begin, Ticks end) {
  base::MutexLock lock(&mutex_);
  stalled_[edge] += end - begin;
}

// Nothing that the meter hears of later began before what goes on now.
void RealClock::SettleLocked() {
  Ticks until = Now();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    until = std::min(until, lane->open);
  }
  meter_.Settle(until);
}

void RealClock::Settle() {
  base::MutexLock lock(&mutex_);
  SettleLocked();
}

DeviceTimes RealClock::times() {
  base::MutexLock lock(&mutex_);
  SettleLocked();
  DeviceTimes times = meter_.times();
  times.compute = ToSeconds(compute_);
  for (std::size_t s = 0; s < base::kNumStageKinds; ++s) {
    times.compute_stages.values[s] = ToSeconds(stages_.values[s]);
  }
  times.host_lane = ToSeconds(host_lane_);
  for (std::size_t e = 0; e < base::kNumWaitEdges; ++e) {
    times.stalled.values[e] = ToSeconds(stalled_.values[e]);
  }
  return times;
}

void RealClock::SleepUntil(Ticks time, const std::atomic<bool>* stop) {
  base::MutexLock lock(&meeting_.mutex);
  while (Now() < time && (stop == nullptr || !stop->load())) {
    meeting_.WaitUntil(time);
  }
}

}  // namespace comoe::device
