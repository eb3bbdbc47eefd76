#include "engine/device/cuda/cuda_meter.h"

#include <cmath>
#include <optional>

namespace comoe::device {

std::size_t CudaMeter::AddLane(absl::string_view name) {
  base::MutexLock lock(&mutex_);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i]->dropped && lanes_[i]->name == name) {
      lanes_[i]->dropped = false;
      return i;
    }
  }
  lanes_.push_back(std::make_unique<Lane>());
  lanes_.back()->name = std::string(name);
  return lanes_.size() - 1;
}

void CudaMeter::DropLane(std::size_t lane) {
  base::MutexLock lock(&mutex_);
  CollectLocked();
  lanes_[lane]->marks.Clear();
  lanes_[lane]->open = {};
  lanes_[lane]->dropped = true;
}

void CudaMeter::Add(std::size_t lane, const CudaMark& mark, const Event& event) {
  base::MutexLock lock(&mutex_);
  lanes_[lane]->marks.PushBack({mark, event});
}

void CudaMeter::AddHost(std::size_t lane, const CudaMark& mark, double begin, double end) {
  base::MutexLock lock(&mutex_);
  if (mark.what == CudaMark::What::kWork && mark.stage.kind == base::StageKind::kHostExpert) {
    meter_.AddHostLane(ToTicks(begin), ToTicks(end));
  }
  if (mark.what == CudaMark::What::kCopy) {
    meter_.AddCopy(mark.direction, ToTicks(begin), ToTicks(end));
  }
  if (TimelineSink* sink = sink_.load(std::memory_order_acquire); sink != nullptr && begin < end) {
    sink->Add(lanes_[lane]->name, mark.stage,
              mark.what == CudaMark::What::kStall ? std::optional<base::WaitEdge>(mark.edge) : std::nullopt,
              begin, end, mark.bytes);
  }
}

void CudaMeter::Collect() {
  base::MutexLock lock(&mutex_);
  CollectLocked();
}

void CudaMeter::CollectLocked() {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    while (!lane->marks.empty() && lane->marks.front().event.Done()) {
      const Stamped next = lane->marks.PopFront();
      // What a lane waited for may have happened before it began to wait.
      const double seconds = next.event.state() == nullptr ? lane->begin : next.event.state()->Seconds();
      const double at = std::fmax(lane->begin, seconds);
      if (std::isnan(seconds)) {  // a poisoned device
        lane->open = {};
        continue;
      }
      Count(*lane, at);
      Show(*lane, at);
      lane->open = next.mark;
      lane->begin = at;
      lane->counted = std::fmax(lane->counted, at);
    }
  }
}

void CudaMeter::Count(Lane& lane, double end) {
  const Ticks from = ToTicks(lane.counted);
  const Ticks to = ToTicks(end);
  lane.counted = std::fmax(lane.counted, end);
  switch (lane.open.what) {
    case CudaMark::What::kIdle:
      return;
    case CudaMark::What::kWork:
      return meter_.AddCompute(lane.open.stage.kind, from, to);
    case CudaMark::What::kStall:
      return meter_.AddStall(lane.open.edge, from, to);
    case CudaMark::What::kCopy:
      return meter_.AddCopy(lane.open.direction, from, to);
  }
}

void CudaMeter::Show(const Lane& lane, double end) const {
  TimelineSink* sink = sink_.load(std::memory_order_acquire);
  if (sink == nullptr || lane.open.what == CudaMark::What::kIdle || !(lane.begin < end)) {
    return;
  }
  const bool waits = lane.open.what == CudaMark::What::kStall;
  sink->Add(lane.name, lane.open.stage, waits ? std::optional<base::WaitEdge>(lane.open.edge) : std::nullopt,
            lane.begin, end, lane.open.bytes);
}

DeviceTimes CudaMeter::times(double now) {
  base::MutexLock lock(&mutex_);
  CollectLocked();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    Count(*lane, now);  // what is under way: so much of it
  }
  meter_.Settle(ToTicks(now));
  return meter_.times();
}

}  // namespace comoe::device
