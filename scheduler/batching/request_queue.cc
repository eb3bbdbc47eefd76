#include "scheduler/batching/request_queue.h"

#include <utility>

namespace comoe::batching {

RequestQueue::Rank RequestQueue::RankOf(const Sequence& sequence) {
  return {-sequence.request.priority, sequence.id};
}

void RequestQueue::PutBack(std::unique_ptr<Sequence> sequence) {
  num_tokens_ += sequence->num_pending();
  ranks_.insert(RankOf(*sequence));
  const base::SequenceId id = sequence->id;
  waiting_.emplace(id, std::move(sequence));
}

std::unique_ptr<Sequence> RequestQueue::Take(base::SequenceId id) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) {
    return nullptr;
  }
  std::unique_ptr<Sequence> sequence = std::move(found->second);
  waiting_.erase(found);
  ranks_.erase(RankOf(*sequence));
  num_tokens_ -= sequence->num_pending();
  return sequence;
}

std::unique_ptr<Sequence> RequestQueue::Pop() {
  if (waiting_.empty()) {
    return nullptr;
  }
  Sequence& oldest = *waiting_.begin()->second;
  const base::SequenceId best = ranks_.begin()->id;
  return Take(oldest.times_passed_over >= kMaxPassedOver ? oldest.id : best);
}

void RequestQueue::CountPassedOver(base::SequenceId admitted) {
  if (!waiting_.empty() && waiting_.begin()->first < admitted) {
    ++waiting_.begin()->second->times_passed_over;
  }
}

std::unique_ptr<Sequence> RequestQueue::Remove(base::SequenceId id) { return Take(id); }

template <typename Wanted>
std::vector<std::unique_ptr<Sequence>> RequestQueue::TakeIf(const Wanted& wanted) {
  std::vector<base::SequenceId> ids;
  for (const auto& [id, sequence] : waiting_) {
    if (wanted(*sequence)) {
      ids.push_back(id);
    }
  }
  std::vector<std::unique_ptr<Sequence>> taken;
  taken.reserve(ids.size());
  for (const base::SequenceId id : ids) {
    taken.push_back(Take(id));
  }
  return taken;
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::TakeExpired(absl::Time now) {
  return TakeIf([now](const Sequence& sequence) {
    return sequence.request.deadline <= now || sequence.time_limit <= now;
  });
}

std::vector<std::unique_ptr<Sequence>> RequestQueue::TakeNeverRun() {
  return TakeIf([](const Sequence& sequence) { return !sequence.has_run(); });
}

}  // namespace comoe::batching
