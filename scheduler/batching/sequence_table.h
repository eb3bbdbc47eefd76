// What the scheduler knows of each request it has accepted, and which of them are running.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "scheduler/batching/kv_block_manager.h"
#include "scheduler/batching/request.h"
#include "scheduler/batching/stop_conditions.h"

namespace comoe::batching {

enum class SequenceState {
  kWaiting,     // in the queue: has never run, or lost its memory to others
  kPrefilling,  // running, no token since it started last
  kDecoding,    // running, has had one
  kFinished     // its terminal event is on its way; never left
};

// A request from Submit to its terminal event. Owned by the request queue while it waits, by the sequence
// table while it runs; whoever ends it takes it out of there first.
struct Sequence {
  base::SequenceId id;
  Request request;
  std::shared_ptr<RequestObserver> observer;
  TokenLimit limit;
  std::vector<base::TokenId> masked;  // until min_tokens have been generated
  absl::Time time_limit = absl::InfiniteFuture();
  SequenceState state = SequenceState::kWaiting;

  std::vector<base::TokenId> tokens;  // the prompt, then what was generated
  std::int64_t num_prompt = 0;
  std::int64_t num_computed = 0;     // rows the engine has run: positions [0, num_computed) are in the state
  std::int64_t num_undelivered = 0;  // rows run since the last token was delivered
  std::int64_t num_scored = 0;       // prompt positions whose scores were delivered
  std::int64_t num_cached = 0;       // positions that were in memory when it started last
  std::int64_t num_cached_at_start = 0;  // and when it started first
  std::int64_t num_prompt_counted = 0;   // prompt positions that metrics know of
  KvBlockManager::State blocks;

  // Order and memory.
  std::int64_t preemptions = 0;        // how often it lost its memory
  std::int64_t num_recomputed = 0;     // rows that were lost with it
  std::int64_t times_passed_over = 0;  // in the queue, while it is the one that has waited longest
  std::int64_t steps_passed_over = 0;  // in a row, while it ran
  bool ran_last_step = false;
  bool hinted = false;  // the engine has been told what its first rows will be

  absl::Time submitted;
  absl::Time started = absl::InfinitePast();  // first
  absl::Time first_token;
  absl::Time last_token;

  std::int64_t num_generated() const { return static_cast<std::int64_t>(tokens.size()) - num_prompt; }
  // Rows still to be run; between steps a running sequence always has at least one.
  std::int64_t num_pending() const { return static_cast<std::int64_t>(tokens.size()) - num_computed; }

  absl::Time received() const {
    return request.received == absl::InfinitePast() ? submitted : request.received;
  }
  bool has_run() const { return started != absl::InfinitePast(); }
  bool holds_blocks() const { return !blocks.empty(); }

  // What the next draw may not give.
  absl::Span<const base::TokenId> masked_now() const {
    return num_generated() < request.stop.min_tokens ? absl::MakeConstSpan(masked)
                                                     : absl::Span<const base::TokenId>();
  }

  // waiting -> prefilling -> decoding, from each of the latter two back to waiting, and from all to finished;
  // anything else is a bug of ours.
  void MoveTo(SequenceState next);
};

// The running sequences, in the order they arrived, which is that of their ids. Owned by the engine thread.
class SequenceTable {
 public:
  void Add(std::unique_ptr<Sequence> sequence);
  Sequence* Find(base::SequenceId id);  // nullptr if it is not running
  // nullptr if it is not running.
  std::unique_ptr<Sequence> Remove(base::SequenceId id);

  bool empty() const { return sequences_.empty(); }
  std::int64_t size() const { return static_cast<std::int64_t>(sequences_.size()); }
  // Pointers live until Add or Remove.
  std::vector<Sequence*> InOrder();
  std::vector<const Sequence*> InOrder() const;

 private:
  absl::btree_map<base::SequenceId, std::unique_ptr<Sequence>> sequences_;
};

}  // namespace comoe::batching
