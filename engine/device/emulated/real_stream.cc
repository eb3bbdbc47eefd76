#include "engine/device/emulated/real_stream.h"

#include <pthread.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/device/emulated/describe.h"

namespace comoe::device {

InlineStream::InlineStream(RealClock& clock, LaneId lane, int threads, const std::atomic<bool>* stop)
    : clock_(clock),
      lane_(lane),
      name_(clock.lane_name(lane)),
      kind_(clock.lane_kind(lane)),
      stop_(stop),
      pool_(threads, "comoe-compute") {}

void InlineStream::SetStage(const base::Stage& stage) {
  Flush();
  stage_ = stage;
}

absl::Status InlineStream::CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) {
  RunCopy(clock_.PrepareCopy(target, source, bytes, stage_));
  return absl::OkStatus();
}

void InlineStream::RunCopy(const RealCopy& copy) {
  if (copy.fault.kind == CopyFault::Kind::kHang) {
    hung_ = true;
    first_error_.Update(NeverEndsError());
    return;
  }
  Flush();
  Fail(clock_.RunCopy(lane_, copy, stop_));
}

void InlineStream::Fail(const absl::Status& error) {
  status_.Update(error);
  first_error_.Update(error);
}

absl::StatusOr<Event> InlineStream::Record() {
  Event event = clock_.MakeEvent();
  Happen(event);
  return event;
}

void InlineStream::Happen(const Event& event) {
  const absl::Status status = std::exchange(status_, absl::OkStatus());
  if (std::exchange(hung_, false)) {
    static_cast<RealEvent*>(event.state())->Hang();
  } else {
    clock_.Happen(event, status);
  }
}

absl::Status InlineStream::Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) {
  auto* state = dynamic_cast<RealEvent*>(event.state());
  if (state == nullptr || state->Done()) {
    return event.Synchronize(limit);
  }
  BeginHoldUp(edge);
  const absl::Status status = state->Await(limit, stop_);
  EndHoldUp();
  return status;
}

// It computes on the caller's thread, so that it has nothing left to do.
void InlineStream::BeginHoldUp(base::WaitEdge edge) {
  Flush();
  held_up_along_ = edge;
  held_up_begin_ = clock_.Now();
}

void InlineStream::EndHoldUp() {
  const Ticks end = clock_.Now();
  if (kind_ == StreamKind::kCompute) {
    clock_.AddStall(held_up_along_, held_up_begin_, end);
  }
  clock_.timeline().Add(name_, stage_, held_up_along_, held_up_begin_, end, 0);
}

absl::Status InlineStream::Synchronize() {
  clock_.Settle();
  status_ = absl::OkStatus();
  hung_ = false;
  return TakeError();
}

absl::Status InlineStream::TakeError() {
  Flush();
  return std::exchange(first_error_, absl::OkStatus());
}

void InlineStream::EndKernel(const KernelWork& /*work*/) {
  const Ticks end = clock_.EndKernel(lane_, stage_.kind, kernel_begin_);
  span_.Add(clock_.timeline(), name_, stage_, kernel_begin_, end);
}

QueuedStream::QueuedStream(RealClock& clock, LaneId lane)
    : clock_(clock),
      meeting_(clock.meeting()),
      kind_(clock.lane_kind(lane)),
      work_(clock, lane, 1, &stop_),
      thread_([this] { Run(); }) {
  const std::string name = absl::StrCat("comoe-", clock.lane_name(lane));
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

QueuedStream::~QueuedStream() {
  {
    base::MutexLock lock(&meeting_.mutex);
    stop_.store(true);
    meeting_.changed.SignalAll();
  }
  thread_.join();
  for (;;) {
    Op op;
    {
      base::MutexLock lock(&meeting_.mutex);
      if (ops_.empty()) {
        return;
      }
      op = ops_.PopFront();
    }
    if (op.kind == Op::Kind::kRecord) {
      static_cast<RealEvent*>(op.event.state())
          ->Happen(absl::CancelledError("emulated: the stream that recorded this is gone"));
    }
  }
}

absl::Status QueuedStream::CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) {
  Op op;
  op.kind = Op::Kind::kCopy;
  op.copy = clock_.PrepareCopy(target, source, bytes, stage_);
  const bool holds_up_caller = op.copy.route.pageable && std::this_thread::get_id() != thread_.get_id();
  const std::uint64_t number = Push(std::move(op));
  if (holds_up_caller) {
    AwaitDone(number);
  }
  return absl::OkStatus();
}

absl::Status QueuedStream::Submit(HostWork& work) {
  if (kind_ != StreamKind::kHost) {
    return Stream::Submit(work);
  }
  Op op;
  op.kind = Op::Kind::kWork;
  op.work = &work;
  Push(std::move(op));
  return absl::OkStatus();
}

absl::StatusOr<Event> QueuedStream::Record() {
  Op op;
  op.kind = Op::Kind::kRecord;
  op.event = clock_.MakeEvent();
  Event event = op.event;
  Push(std::move(op));
  return event;
}

absl::Status QueuedStream::Wait(const Event& event, base::WaitEdge edge, absl::Duration limit) {
  if (event.Done()) {
    return event.Synchronize(limit);
  }
  Op op;
  op.kind = Op::Kind::kWait;
  op.event = event;
  op.edge = edge;
  op.limit = limit;
  Push(std::move(op));
  return absl::OkStatus();
}

absl::Status QueuedStream::Synchronize() {
  std::uint64_t number = 0;
  {
    base::MutexLock lock(&meeting_.mutex);
    number = queued_;
  }
  AwaitDone(number);
  base::MutexLock lock(&meeting_.mutex);
  return std::exchange(first_error_, absl::OkStatus());
}

std::uint64_t QueuedStream::Push(Op op) {
  op.stage = stage_;
  base::MutexLock lock(&meeting_.mutex);
  ops_.PushBack(std::move(op));
  meeting_.changed.SignalAll();
  return ++queued_;
}

void QueuedStream::AwaitDone(std::uint64_t number) {
  base::MutexLock lock(&meeting_.mutex);
  while (done_ < number) {
    meeting_.WaitUntil(kNever);
  }
}

void QueuedStream::Run() {
  for (;;) {
    Op op;
    {
      base::MutexLock lock(&meeting_.mutex);
      while (ops_.empty() && !stop_.load()) {
        meeting_.WaitUntil(kNever);
      }
      if (stop_.load()) {
        return;
      }
      op = ops_.PopFront();
    }
    Execute(op);
    op = Op();
    const absl::Status error = work_.TakeError();
    base::MutexLock lock(&meeting_.mutex);
    first_error_.Update(error);
    ++done_;
    meeting_.changed.SignalAll();
  }
}

void QueuedStream::Execute(Op& op) {
  switch (op.kind) {
    case Op::Kind::kCopy:
      return work_.RunCopy(op.copy);
    case Op::Kind::kWork:
      work_.SetStage(op.stage);
      return work_.Fail(op.work->Run(work_));
    case Op::Kind::kRecord:
      return work_.Happen(op.event);
    case Op::Kind::kWait:
      // The caller does not hear of it any more, but what is queued behind it is worth nothing.
      return work_.Fail(work_.Wait(op.event, op.edge, op.limit));
  }
}

}  // namespace comoe::device
