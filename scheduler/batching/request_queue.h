// Requests accepted and not yet started, first come first served.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "scheduler/batching/sequence_table.h"

namespace comoe::batching {

// Bounded: it never holds more than `capacity` sequences. Thread-compatible: the scheduler guards it.
class RequestQueue {
 public:
  explicit RequestQueue(std::int64_t capacity) : capacity_(capacity) {}

  std::int64_t capacity() const { return capacity_; }
  std::int64_t size() const { return static_cast<std::int64_t>(waiting_.size()); }
  bool empty() const { return waiting_.empty(); }
  bool full() const { return size() >= capacity_; }

  // The queue is not full.
  void Push(std::unique_ptr<Sequence> sequence);
  // The one that came first; nullptr if nobody waits.
  std::unique_ptr<Sequence> Pop();
  // nullptr if it does not wait here.
  std::unique_ptr<Sequence> Remove(base::SequenceId id);
  // Those whose deadline is not after `now`, in order.
  std::vector<std::unique_ptr<Sequence>> TakeExpired(absl::Time now);
  // All, in order.
  std::vector<std::unique_ptr<Sequence>> TakeAll();

 private:
  const std::int64_t capacity_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
};

}  // namespace comoe::batching
