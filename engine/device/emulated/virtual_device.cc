#include "engine/device/emulated/virtual_device.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/emulated/busy_meter.h"
#include "engine/device/emulated/costs.h"
#include "engine/device/emulated/describe.h"
#include "engine/device/emulated/emulated_memory.h"
#include "engine/device/emulated/emulated_stream.h"
#include "engine/device/emulated/event_pool.h"
#include "engine/device/emulated/ring.h"
#include "engine/device/emulated/ticks.h"
#include "engine/device/emulated/timeline.h"

namespace comoe::device {
namespace {

class VirtualDevice;

struct PendingCopy {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t bytes = 0;
  Ticks end = 0;
};

// What a stream's work left behind; lives as long as the device, since events refer to it.
struct Lane {
  Lane(absl::string_view lane_name, StreamKind lane_kind) : name(lane_name), kind(lane_kind) {}

  // Moves the bytes of all copies before the one numbered `number`.
  void MoveBefore(std::uint64_t number) {
    while (moved < number && !pending.empty()) {
      MoveFirst();
    }
  }
  void MoveUntil(Ticks time) {
    while (!pending.empty() && pending.front().end <= time) {
      MoveFirst();
    }
  }
  void MoveFirst() {
    const PendingCopy copy = pending.PopFront();
    std::memcpy(copy.target, copy.source, copy.bytes);
    ++moved;
  }
  void Fail(const absl::Status& error) {
    status.Update(error);
    first_error.Update(error);
  }

  const std::string name;
  const StreamKind kind;
  Ticks tail = 0;  // when the work queued so far ends
  base::Stage stage;
  std::optional<base::WaitEdge> held_up;  // along what, and...
  Ticks held_up_from = 0;
  StageSpan span{0};
  Ring<PendingCopy> pending;
  std::uint64_t moved = 0;   // copies that `pending` held before its first
  absl::Status status;       // of the work since the last event
  bool hung = false;         // of the work since the last event, a copy never ends
  absl::Status first_error;  // since the last Synchronize
};

// When a direction of the link is taken, from now on. A copy that has to wait for something else (a result of
// the host lane) leaves the link to those that need not, though they are queued later.
class LinkPlan {
 public:
  // The first free stretch of that length which begins at `from` or later: its beginning.
  Ticks Reserve(Ticks now, Ticks from, Ticks length) {
    taken_.erase(taken_.begin(),
                 std::find_if(taken_.begin(), taken_.end(), [now](const Taken& t) { return t.end > now; }));
    Ticks begin = from;
    auto next = taken_.begin();
    for (; next != taken_.end() && After(begin, length) > next->begin; ++next) {
      begin = std::max(begin, next->end);
    }
    taken_.insert(next, {begin, After(begin, length)});
    return begin;
  }

 private:
  struct Taken {
    Ticks begin = 0;
    Ticks end = 0;
  };
  std::vector<Taken> taken_;  // in order, apart from each other
};

class VirtualEvent final : public Event::State {
 public:
  void Set(VirtualDevice* device, Lane* lane, Ticks time, absl::Status status) {
    device_ = device;
    lane_ = lane;
    copies_ = lane->moved + lane->pending.size();
    time_ = time;
    status_ = std::move(status);
  }
  bool Done() const override;
  absl::Status Synchronize(absl::Duration limit) override;
  double Seconds() const override {
    return Done() ? ToSeconds(time_) : std::numeric_limits<double>::quiet_NaN();
  }

  Ticks time() const { return time_; }  // kNever: it will not happen
  const absl::Status& status() const { return status_; }
  const VirtualDevice* device() const { return device_; }
  // Somebody may now see what was copied before it.
  void MoveBytes() const { lane_->MoveBefore(copies_); }

 protected:
  void Recycle() override;

 private:
  VirtualDevice* device_ = nullptr;
  Lane* lane_ = nullptr;
  std::uint64_t copies_ = 0;  // of its lane, before it
  Ticks time_ = 0;
  absl::Status status_;
};

// Waiting for its time, in a heap with the earliest on top.
struct Notice {
  Ticks time = 0;
  std::uint64_t number = 0;
  EventListener* listener = nullptr;
  std::uint64_t tag = 0;
  friend bool operator<(const Notice& a, const Notice& b) {
    return a.time != b.time ? a.time > b.time : a.number > b.number;
  }
};

class VirtualDevice final : public Device {
 public:
  explicit VirtualDevice(EmulatedOptions options)
      : options_(std::move(options)),
        costs_(options_.rates),
        host_(MakeCpuDevice(options_.threads)),
        memory_(std::make_shared<EmulatedMemory>(
            *host_,
            EmulatedMemory::Limits{options_.device_bytes, options_.pinned_bytes, options_.refuse_pinned})) {}

  DeviceId id() const override { return {DeviceKind::kEmulated, 0}; }
  std::string Describe() const override { return DescribeEmulated(options_); }
  MemoryInfo memory(MemoryKind kind) const override { return memory_->Info(kind); }
  absl::StatusOr<Buffer> Allocate(MemoryKind kind, std::size_t bytes, std::size_t alignment) override {
    return memory_->Allocate(kind, bytes, alignment);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name, StreamKind kind) override;
  void Notify(const Event& event, EventListener& listener, std::uint64_t tag) override;
  double Now() const override { return ToSeconds(now_); }
  bool simulated() const override { return true; }
  DeviceTimes times() const override { return meter_.times(); }
  void SetTimeline(TimelineSink* sink) override {
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      lane->span.Flush(timeline_, lane->name);
    }
    timeline_.SetSink(sink);
  }

  // For its streams and events.
  Ticks now() const { return now_; }
  void AdvanceTo(Ticks time);
  void QueueCopy(Lane& lane, std::byte* target, const std::byte* source, std::size_t bytes);
  void QueueKernel(Lane& lane, const KernelWork& work);
  void QueueDiskRead(Lane& lane, std::size_t bytes);
  absl::Status QueueWait(Lane& lane, const VirtualEvent& event, base::WaitEdge edge, absl::Duration limit);
  Event Record(Lane& lane);
  void Recycle(VirtualEvent* event) { events_.Put(event); }
  const Timeline& timeline() const { return timeline_; }

 private:
  void SetNow(Ticks time);
  // When work that is queued on the lane now can begin.
  Ticks Earliest(const Lane& lane) const {
    Ticks earliest = std::max(lane.tail, now_);
    if (options_.serial == EmulatedSerial::kOneStream) {
      for (const std::unique_ptr<Lane>& other : lanes_) {
        earliest = std::max(earliest, other->tail);
      }
    }
    return earliest;
  }
  CopyFault AskForFault(const Lane& lane, std::size_t bytes, base::CopyDirection direction) {
    const CopyRequest request = {lane.stage, bytes, direction, copies_++};
    return options_.copy_faults == nullptr ? CopyFault::None() : options_.copy_faults(request);
  }

  const EmulatedOptions options_;
  const Costs costs_;
  const std::unique_ptr<Device> host_;  // gives memory and computes
  const std::shared_ptr<EmulatedMemory> memory_;
  EventPool<VirtualEvent> events_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  Ticks now_ = 0;
  base::PerKind<LinkPlan, base::kNumCopyDirections> links_;  // and the disk
  std::uint64_t copies_ = 0;
  std::vector<Notice> notices_;
  std::uint64_t num_notices_ = 0;
  bool notifying_ = false;
  BusyMeter meter_;
  Timeline timeline_;
};

class VirtualStream final : public EmulatedStream {
 public:
  VirtualStream(VirtualDevice& device, Lane& lane, std::unique_ptr<Stream> host)
      : device_(device), lane_(lane), host_(std::move(host)) {}
  ~VirtualStream() override {
    lane_.span.Flush(device_.timeline(), lane_.name);
    lane_.pending.Clear();  // nobody waited, so that their memory may be gone
  }

  DeviceId device() const override { return device_.id(); }
  CpuStream* cpu() override { return host_->cpu(); }
  void SetStage(const base::Stage& stage) override {
    lane_.span.Flush(device_.timeline(), lane_.name);
    lane_.stage = stage;
  }
  absl::Status CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) override {
    device_.QueueCopy(lane_, target, source, bytes);
    return absl::OkStatus();
  }
  absl::Status Submit(HostWork& work) override {
    if (lane_.kind != StreamKind::kHost) {
      return Stream::Submit(work);
    }
    MoveAll();
    lane_.Fail(work.Run(*this));
    return absl::OkStatus();
  }
  void CountDiskRead(std::size_t bytes) override { device_.QueueDiskRead(lane_, bytes); }
  absl::StatusOr<Event> Record() override { return device_.Record(lane_); }
  absl::Status Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) override {
    const auto* state = dynamic_cast<const VirtualEvent*>(event.state());
    if (state == nullptr || state->device() != &device_) {
      return event.Synchronize(limit);
    }
    return device_.QueueWait(lane_, *state, edge, limit);
  }
  absl::Status Synchronize() override {
    lane_.span.Flush(device_.timeline(), lane_.name);
    device_.AdvanceTo(lane_.tail);
    lane_.status = absl::OkStatus();
    lane_.hung = false;
    return std::exchange(lane_.first_error, absl::OkStatus());
  }
  void BeginKernel() override { MoveAll(); }
  void EndKernel(const KernelWork& work) override { device_.QueueKernel(lane_, work); }

 private:
  void BeginHoldUp(base::WaitEdge edge) override {
    lane_.held_up = edge;
    lane_.held_up_from = std::max(lane_.tail, device_.now());
  }
  void EndHoldUp() override {
    if (lane_.held_up_from < device_.now()) {
      lane_.span.Flush(device_.timeline(), lane_.name);
      device_.timeline().Add(lane_.name, lane_.stage, lane_.held_up, lane_.held_up_from, device_.now(), 0);
    }
    lane_.held_up.reset();
  }
  // What runs on the stream now sees what was copied on it before.
  void MoveAll() { lane_.MoveBefore(std::numeric_limits<std::uint64_t>::max()); }

  VirtualDevice& device_;
  Lane& lane_;
  const std::unique_ptr<Stream> host_;
};

bool VirtualEvent::Done() const { return time_ <= device_->now(); }

absl::Status VirtualEvent::Synchronize(absl::Duration limit) {
  const Ticks deadline = Deadline(device_->now(), limit);
  if (time_ == kNever && deadline == kNever) {
    return NeverEndsError();
  }
  if (time_ > deadline) {
    device_->AdvanceTo(deadline);
    return NotInTimeError(limit);
  }
  device_->AdvanceTo(time_);
  MoveBytes();
  return status_;
}

void VirtualEvent::Recycle() {
  status_ = absl::OkStatus();
  device_->Recycle(this);
}

absl::StatusOr<std::unique_ptr<Stream>> VirtualDevice::CreateStream(absl::string_view name, StreamKind kind) {
  COMOE_ASSIGN_OR_RETURN(std::unique_ptr<Stream> host, host_->CreateStream(name, kind));
  lanes_.push_back(std::make_unique<Lane>(name, kind));
  return std::make_unique<VirtualStream>(*this, *lanes_.back(), std::move(host));
}

void VirtualDevice::Notify(const Event& event, EventListener& listener, std::uint64_t tag) {
  const auto* state = dynamic_cast<const VirtualEvent*>(event.state());
  const Ticks time = state == nullptr ? now_ : std::max(state->time(), now_);
  if (time == kNever) {
    return;
  }
  if (time == now_ && !notifying_) {
    listener.OnEvent(tag);
    return;
  }
  notices_.push_back({time, num_notices_++, &listener, tag});
  std::push_heap(notices_.begin(), notices_.end());
}

// Within a listener it only moves the clock: the outer call goes on with the notices that became due.
void VirtualDevice::AdvanceTo(Ticks time) {
  if (!notifying_) {
    notifying_ = true;
    while (!notices_.empty() && notices_.front().time <= std::max(time, now_)) {
      std::pop_heap(notices_.begin(), notices_.end());
      const Notice notice = notices_.back();
      notices_.pop_back();
      SetNow(notice.time);
      notice.listener->OnEvent(notice.tag);
    }
    notifying_ = false;
  }
  SetNow(time);
}

void VirtualDevice::SetNow(Ticks time) {
  if (time <= now_) {
    return;
  }
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const Ticks from = std::max(lane->tail, now_);
    if (lane->held_up.has_value() && lane->kind == StreamKind::kCompute && from < time) {
      meter_.AddStall(*lane->held_up, from, time);
    }
  }
  now_ = time;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    lane->MoveUntil(now_);
  }
  // All that is queued from now on starts now or later.
  meter_.Settle(now_);
}

void VirtualDevice::QueueCopy(Lane& lane, std::byte* target, const std::byte* source, std::size_t bytes) {
  const CopyRoute route = RouteOf(memory_->KindOf(source), memory_->KindOf(target));
  CopyFault fault;
  if (route.direction.has_value()) {
    fault = AskForFault(lane, bytes, *route.direction);
  }
  if (fault.kind == CopyFault::Kind::kHang) {
    lane.hung = true;
    lane.first_error.Update(NeverEndsError());
    return;
  }
  const Ticks from = Earliest(lane);
  Ticks begin = from;
  const Ticks length = costs_.Copy(route, bytes);
  if (route.link) {
    begin = links_[*route.direction].Reserve(now_, from, length);
  }
  const Ticks end = After(begin, length);
  lane.tail = After(end, ToTicks(fault.late_seconds));
  if (route.direction.has_value()) {
    meter_.AddCopy(*route.direction, begin, end);
  }
  if (lane.kind == StreamKind::kCompute) {
    meter_.AddCompute(lane.stage.kind, from, lane.tail);
  }
  lane.span.Flush(timeline_, lane.name);
  timeline_.Add(lane.name, lane.stage, std::nullopt, begin, lane.tail, bytes);
  if (fault.kind == CopyFault::Kind::kFail) {
    lane.Fail(fault.status);
  } else {
    lane.pending.PushBack({source, target, bytes, lane.tail});
  }
  if (route.pageable) {
    AdvanceTo(lane.tail);
  }
}

void VirtualDevice::QueueKernel(Lane& lane, const KernelWork& work) {
  const Ticks begin = Earliest(lane);
  lane.tail = After(begin, costs_.Kernel(lane.kind, work));
  if (lane.kind == StreamKind::kHost) {
    meter_.AddHostLane(begin, lane.tail);
  } else {
    meter_.AddCompute(lane.stage.kind, begin, lane.tail);
  }
  lane.span.Add(timeline_, lane.name, lane.stage, begin, lane.tail);
  if (options_.serial == EmulatedSerial::kBlockingLaunches) {
    AdvanceTo(lane.tail);
  }
}

void VirtualDevice::QueueDiskRead(Lane& lane, std::size_t bytes) {
  constexpr auto kDisk = base::CopyDirection::kDiskToHost;
  const Ticks length = costs_.DiskRead(bytes);
  const Ticks begin = links_[kDisk].Reserve(now_, std::max(lane.tail, now_), length);
  lane.tail = After(begin, length);
  meter_.AddCopy(kDisk, begin, lane.tail);
  lane.span.Flush(timeline_, lane.name);
  timeline_.Add(lane.name, lane.stage, std::nullopt, begin, lane.tail, bytes);
}

absl::Status VirtualDevice::QueueWait(Lane& lane, const VirtualEvent& event, base::WaitEdge edge,
                                      absl::Duration limit) {
  const Ticks from = std::max(lane.tail, now_);
  const Ticks deadline = Deadline(from, limit);
  if (event.time() == kNever && deadline == kNever) {
    return NeverEndsError();
  }
  const bool happens = event.time() <= deadline;
  const Ticks until = std::min(event.time(), deadline);
  if (until > from) {
    lane.span.Flush(timeline_, lane.name);
    lane.tail = until;
    timeline_.Add(lane.name, lane.stage, edge, from, until, 0);
    if (lane.kind == StreamKind::kCompute) {
      meter_.AddStall(edge, from, until);
    }
  }
  if (!happens) {
    return NotInTimeError(limit);
  }
  event.MoveBytes();
  return event.status();
}

Event VirtualDevice::Record(Lane& lane) {
  VirtualEvent* state = events_.Take();
  state->Set(this, &lane, lane.hung ? kNever : lane.tail, std::move(lane.status));
  lane.status = absl::OkStatus();
  lane.hung = false;
  return Event(state);
}

}  // namespace

std::unique_ptr<Device> MakeVirtualDevice(EmulatedOptions options) {
  return std::make_unique<VirtualDevice>(std::move(options));
}

}  // namespace comoe::device
