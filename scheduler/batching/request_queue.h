// Requests accepted and not running: those that never ran, and those that lost their memory to others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "scheduler/batching/sequence_table.h"

namespace comoe::batching {

// Order: higher priority first, then first come first served. But who has waited longest is passed over by at
// most kMaxPassedOver later ones and goes first then, whatever its priority.
//
// Bounded in requests and in tokens for new ones (HasRoom); those that come back were accepted before.
// Thread-compatible: the scheduler guards it.
class RequestQueue {
 public:
  static constexpr std::int64_t kMaxPassedOver = 64;

  RequestQueue(std::int64_t max_requests, std::int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  std::int64_t max_requests() const { return max_requests_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  std::int64_t size() const { return static_cast<std::int64_t>(waiting_.size()); }
  bool empty() const { return waiting_.empty(); }
  // Tokens whose rows are still to be computed.
  std::int64_t num_tokens() const { return num_tokens_; }
  // Room for that many more requests of that many tokens together. In an empty queue their length does not
  // matter.
  bool HasRoom(std::int64_t requests, std::int64_t tokens) const {
    return size() + requests <= max_requests_ && (empty() || num_tokens_ + tokens <= max_tokens_);
  }

  // A new one, for which there is room, one that Pop gave, or one that ran: it takes the place that its
  // priority and arrival give it.
  void PutBack(std::unique_ptr<Sequence> sequence);
  // The one whose turn it is; nullptr if nobody waits.
  std::unique_ptr<Sequence> Pop();
  // It has begun to run: whoever has waited longer has been passed over once more.
  void CountPassedOver(base::SequenceId admitted);
  // nullptr if it does not wait here.
  std::unique_ptr<Sequence> Remove(base::SequenceId id);
  // Those whose deadline or time limit is not after `now`, in order of arrival.
  std::vector<std::unique_ptr<Sequence>> TakeExpired(absl::Time now);
  // Those that have never run, in order of arrival.
  std::vector<std::unique_ptr<Sequence>> TakeNeverRun();

 private:
  // Ascending: higher priority first, then earlier arrival.
  struct Rank {
    std::int32_t negative_priority = 0;
    base::SequenceId id;
    friend auto operator<=>(const Rank&, const Rank&) = default;  // NOLINT: no null pointer
  };
  static Rank RankOf(const Sequence& sequence);
  std::unique_ptr<Sequence> Take(base::SequenceId id);
  template <typename Wanted>
  std::vector<std::unique_ptr<Sequence>> TakeIf(const Wanted& wanted);

  const std::int64_t max_requests_;
  const std::int64_t max_tokens_;
  std::int64_t num_tokens_ = 0;
  absl::btree_map<base::SequenceId, std::unique_ptr<Sequence>> waiting_;  // by arrival
  absl::btree_set<Rank> ranks_;
};

}  // namespace comoe::batching
