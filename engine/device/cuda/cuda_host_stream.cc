#include "engine/device/cuda/cuda_host_stream.h"

#include <cstring>
#include <utility>

#include "engine/base/wait_briefly.h"

namespace comoe::device {

CpuStream* CudaHostStream::Inside::cpu() {
  if (pool_ == nullptr) {
    pool_ = std::make_unique<base::ThreadPool>(threads_, name_);
    cpu_.emplace(*pool_);
  }
  return &*cpu_;
}

absl::Status CudaHostStream::Inside::CopyAsync(std::byte* target, const std::byte* source,
                                               std::size_t bytes) {
  std::memcpy(target, source, bytes);
  return absl::OkStatus();
}

CudaHostStream::CudaHostStream(CudaContext& context, CudaEvents& events, CudaMeter& meter,
                               absl::string_view name, int threads)
    : context_(context),
      events_(events),
      meter_(meter),
      lane_(meter.AddLane(name)),
      inside_(std::string(name), threads),
      thread_([this] { Run(); }) {}

CudaHostStream::~CudaHostStream() {
  {
    base::MutexLock lock(&mutex_);
    stop_.store(true);
    changed_.SignalAll();
  }
  thread_.join();
  meter_.DropLane(lane_);
  base::MutexLock lock(&mutex_);
  while (!ops_.empty()) {
    const Op op = ops_.PopFront();
    if (op.kind == Op::Kind::kRecord) {
      static_cast<CudaHostEvent*>(op.event.state())
          ->Happen(absl::CancelledError("cuda: the host stream is gone"));
    }
  }
}

std::uint64_t CudaHostStream::Push(Op op) {
  op.stage = stage_;
  base::MutexLock lock(&mutex_);
  ops_.PushBack(std::move(op));
  waiting_.store(true, std::memory_order_release);
  changed_.SignalAll();
  return ++queued_;
}

absl::Status CudaHostStream::CopyAsync(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (context_.KindOf(source) == MemoryKind::kDevice || context_.KindOf(target) == MemoryKind::kDevice) {
    return absl::InvalidArgumentError("cuda: a host stream copies within host memory only");
  }
  Op op;
  op.kind = Op::Kind::kCopy;
  op.target = target;
  op.source = source;
  op.bytes = bytes;
  Push(std::move(op));
  return absl::OkStatus();
}

absl::Status CudaHostStream::Submit(HostWork& work) {
  Op op;
  op.kind = Op::Kind::kWork;
  op.work = &work;
  Push(std::move(op));
  return absl::OkStatus();
}

absl::StatusOr<Event> CudaHostStream::Record() {
  Op op;
  op.kind = Op::Kind::kRecord;
  op.event = events_.MakeHostEvent();
  Event event = op.event;
  Push(std::move(op));
  return event;
}

absl::Status CudaHostStream::Wait(const Event& event, base::WaitEdge /*edge*/, absl::Duration limit) {
  if (event.Done()) {
    return event.Synchronize(absl::ZeroDuration());
  }
  Op op;
  op.kind = Op::Kind::kWait;
  op.event = event;
  op.limit = limit;
  Push(std::move(op));
  return absl::OkStatus();
}

absl::Status CudaHostStream::Synchronize() {
  base::MutexLock lock(&mutex_);
  const std::uint64_t until = queued_;
  while (done_ < until) {
    changed_.Wait(&mutex_);
  }
  return std::exchange(first_error_, absl::OkStatus());
}

void CudaHostStream::Run() {
  context_.api().set_device(context_.ordinal());
  absl::Status failed;  // since the last event
  for (;;) {
    Op op;
    // The next layer's work is near, or nothing is for long.
    base::WaitBriefly([this] { return waiting_.load(std::memory_order_acquire) || stop_.load(); });
    {
      base::MutexLock lock(&mutex_);
      while (ops_.empty() && !stop_.load()) {
        changed_.Wait(&mutex_);
      }
      if (stop_.load()) {
        return;
      }
      op = ops_.PopFront();
      waiting_.store(!ops_.empty(), std::memory_order_relaxed);
    }
    absl::Status error;
    if (op.kind == Op::Kind::kRecord) {
      static_cast<CudaHostEvent*>(op.event.state())->Happen(std::exchange(failed, absl::OkStatus()));
    } else {
      Execute(op, error);
      failed.Update(error);
    }
    op = Op();
    base::MutexLock lock(&mutex_);
    first_error_.Update(error);
    ++done_;
    changed_.SignalAll();
  }
}

void CudaHostStream::Execute(const Op& op, absl::Status& failed) {
  CudaMark mark;
  mark.stage = op.stage;
  const double begin = context_.Now();
  switch (op.kind) {
    case Op::Kind::kCopy:
      std::memcpy(op.target, op.source, op.bytes);
      mark.what = CudaMark::What::kCopy;
      mark.direction = base::CopyDirection::kHostToHost;
      mark.bytes = op.bytes;
      break;
    case Op::Kind::kWork:
      failed = op.work->Run(inside_);
      mark.what = CudaMark::What::kWork;
      break;
    case Op::Kind::kWait:
      failed = CudaEvents::Await(op.event, op.limit, &stop_);
      return;
    case Op::Kind::kRecord:
      return;
  }
  meter_.AddHost(lane_, mark, begin, context_.Now());
}

}  // namespace comoe::device
