#include "engine/device/emulated/busy_meter.h"

#include <algorithm>

namespace comoe::device {

void BusySpans::Add(Ticks begin, Ticks end) {
  if (begin >= end) {
    return;
  }
  if (spans_.empty() || begin > spans_.back().end) {
    spans_.push_back({begin, end});
    return;
  }
  // [first, last) are those that it overlaps or touches.
  auto first = spans_.end() - 1;
  while (first != spans_.begin() && (first - 1)->end >= begin) {
    --first;
  }
  auto last = first;
  while (last != spans_.end() && last->begin <= end) {
    ++last;
  }
  if (first == last) {
    spans_.insert(first, {begin, end});
    return;
  }
  first->begin = std::min(first->begin, begin);
  first->end = std::max((last - 1)->end, end);
  spans_.erase(first + 1, last);
}

Ticks BusySpans::Before(Ticks until) const {
  Ticks sum = 0;
  for (const Span& span : spans_) {
    if (span.begin >= until) {
      break;
    }
    sum += std::min(span.end, until) - span.begin;
  }
  return sum;
}

Ticks BusySpans::OverlapBefore(const BusySpans& other, Ticks until) const {
  Ticks sum = 0;
  auto a = spans_.begin();
  auto b = other.spans_.begin();
  while (a != spans_.end() && b != other.spans_.end()) {
    const Ticks begin = std::max(a->begin, b->begin);
    const Ticks end = std::min({a->end, b->end, until});
    sum += std::max<Ticks>(end - begin, 0);
    if (a->end < b->end) {
      ++a;
    } else {
      ++b;
    }
  }
  return sum;
}

void BusySpans::Drop(Ticks until) {
  auto keep = spans_.begin();
  while (keep != spans_.end() && keep->end <= until) {
    ++keep;
  }
  spans_.erase(spans_.begin(), keep);
  if (!spans_.empty()) {
    spans_.front().begin = std::max(spans_.front().begin, until);
  }
}

void BusyMeter::Settle(Ticks until) {
  for (std::size_t d = 0; d < base::kNumCopyDirections; ++d) {
    busy_sum_.values[d] += copies_.values[d].Before(until);
    overlap_sum_.values[d] += copies_.values[d].OverlapBefore(compute_, until);
    copies_.values[d].Drop(until);
  }
  for (std::size_t e = 0; e < base::kNumWaitEdges; ++e) {
    stall_sum_.values[e] += stalls_.values[e].Before(until);
    stalls_.values[e].Drop(until);
  }
  for (std::size_t s = 0; s < base::kNumStageKinds; ++s) {
    stage_sum_.values[s] += stages_.values[s].Before(until);
    stages_.values[s].Drop(until);
  }
  compute_sum_ += compute_.Before(until);
  compute_.Drop(until);
  host_lane_sum_ += host_lane_.Before(until);
  host_lane_.Drop(until);
}

DeviceTimes BusyMeter::times() const {
  DeviceTimes times;
  times.compute = ToSeconds(compute_sum_);
  for (std::size_t s = 0; s < base::kNumStageKinds; ++s) {
    times.compute_stages.values[s] = ToSeconds(stage_sum_.values[s]);
  }
  times.host_lane = ToSeconds(host_lane_sum_);
  for (std::size_t d = 0; d < base::kNumCopyDirections; ++d) {
    times.copy_busy.values[d] = ToSeconds(busy_sum_.values[d]);
    times.copy_overlapped.values[d] = ToSeconds(overlap_sum_.values[d]);
  }
  for (std::size_t e = 0; e < base::kNumWaitEdges; ++e) {
    times.stalled.values[e] = ToSeconds(stall_sum_.values[e]);
  }
  return times;
}

}  // namespace comoe::device
