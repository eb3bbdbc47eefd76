// Where the streams of an emulated device report what they did.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>

#include "engine/base/stage.h"
#include "engine/device/device.h"
#include "engine/device/emulated/ticks.h"

namespace comoe::device {

// Thread-safe.
class Timeline {
 public:
  void SetSink(TimelineSink* sink) { sink_.store(sink, std::memory_order_release); }
  void Add(const std::string& lane, const base::Stage& stage, std::optional<base::WaitEdge> edge, Ticks begin,
           Ticks end, std::size_t bytes) const {
    TimelineSink* sink = sink_.load(std::memory_order_acquire);
    if (sink != nullptr && begin < end) {
      sink->Add(lane, stage, edge, ToSeconds(begin), ToSeconds(end), bytes);
    }
  }

 private:
  std::atomic<TimelineSink*> sink_{nullptr};
};

// Joins the kernels of one stage to a span. Not thread-safe.
class StageSpan {
 public:
  // Kernels up to `gap` apart are joined.
  explicit StageSpan(Ticks gap) : gap_(gap) {}

  void Add(const Timeline& timeline, const std::string& lane, const base::Stage& stage, Ticks begin,
           Ticks end) {
    if (open_ && begin - end_ > gap_) {
      Flush(timeline, lane);
    }
    if (!open_) {
      open_ = true;
      stage_ = stage;
      begin_ = begin;
    }
    end_ = end;
  }
  // The stage is over.
  void Flush(const Timeline& timeline, const std::string& lane) {
    if (open_) {
      timeline.Add(lane, stage_, std::nullopt, begin_, end_, 0);
    }
    open_ = false;
  }

 private:
  const Ticks gap_;
  bool open_ = false;
  base::Stage stage_;
  Ticks begin_ = 0;
  Ticks end_ = 0;
};

}  // namespace comoe::device
