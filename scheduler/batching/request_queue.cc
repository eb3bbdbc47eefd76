#include "scheduler/batching/request_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/check.h"

namespace comoe::batching {

void RequestQueue::Push(std::unique_ptr<Sequence> sequence) {
  COMOE_CHECK(!full(), "the queue's bound is tested before a request is queued");
  waiting_.push_back(std::move(sequence));
}

std::unique_ptr<Sequence> RequestQueue::Pop() {
  if (waiting_.empty()) {
    return nullptr;
  }
  std::unique_ptr<Sequence> first = std::move(waiting_.front());
  waiting_.pop_front();
  return first;
}

std::unique_ptr<Sequence> RequestQueue::Remove(base::SequenceId id) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(),
                   [id](const std::unique_ptr<Sequence>& waiting) { return waiting->id == id; });
  if (found == waiting_.end()) {
    return nullptr;
  }
  std::unique_ptr<Sequence> sequence = std::move(*found);
  waiting_.erase(found);
  return sequence;
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::TakeExpired(absl::Time now) {
  const auto expired = std::stable_partition(
      waiting_.begin(), waiting_.end(),
      [now](const std::unique_ptr<Sequence>& waiting) { return waiting->request.deadline > now; });
  std::vector<std::unique_ptr<Sequence>> taken(std::make_move_iterator(expired),
                                               std::make_move_iterator(waiting_.end()));
  waiting_.erase(expired, waiting_.end());
  return taken;
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::TakeAll() {
  std::vector<std::unique_ptr<Sequence>> taken(std::make_move_iterator(waiting_.begin()),
                                               std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  return taken;
}

}  // namespace comoe::batching
