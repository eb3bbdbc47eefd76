// What the engine thread shares with every other: requests on their way in, cancels, drain, and the load on
// its way out. One mutex guards all of it; nothing is called back under it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "engine/base/sync.h"
#include "scheduler/batching/request_queue.h"
#include "scheduler/batching/scheduler.h"
#include "scheduler/batching/scheduler_metrics.h"
#include "scheduler/batching/sequence_table.h"

namespace comoe::batching {

struct ForgetRequest {
  bool force = false;
  std::function<void(absl::StatusOr<std::int64_t>)> done;
};

// What others asked of the engine thread since it last looked. The sequences were waiting and are its to end.
struct Mail {
  std::vector<std::pair<std::unique_ptr<Sequence>, CancelReason>> withdrawn;
  std::vector<std::unique_ptr<Sequence>> expired;
  std::vector<std::unique_ptr<Sequence>> drained;
  std::vector<ForgetRequest> forget;
  // Not waiting: running, or ended meanwhile. In the order of the calls: a request's first one counts.
  std::vector<std::pair<base::SequenceId, CancelReason>> cancelled;
  bool stop = false;
};

class Mailbox {
 public:
  using Clock = std::function<absl::Time()>;

  // `metrics` outlives the mailbox, which sets the gauges of waiting requests and of the heartbeat.
  Mailbox(std::int64_t max_waiting_requests, std::int64_t max_waiting_tokens, Clock now,
          SchedulerMetrics& metrics);

  // For any thread. Post takes all or none, and gives the sequences their ids; refusals are those of
  // Scheduler::Submit.
  absl::Status Post(std::vector<std::unique_ptr<Sequence>> sequences) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Cancel(absl::string_view request_id, CancelReason reason) ABSL_LOCKS_EXCLUDED(mutex_);
  void ForgetPrefixes(ForgetRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  void BeginDrain() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until nothing is in flight or the time has come (then false), tells the engine thread to stop and
  // waits for Exit.
  bool Stop(absl::Time until) ABSL_LOCKS_EXCLUDED(mutex_);
  LoadSnapshot load() const ABSL_LOCKS_EXCLUDED(mutex_);

  // For the engine thread. Wait blocks until there is something to do, unless `busy`; both note a heartbeat.
  Mail Wait(bool busy) ABSL_LOCKS_EXCLUDED(mutex_);
  Mail Collect() ABSL_LOCKS_EXCLUDED(mutex_);
  // The request whose turn it is; nullptr if none waits.
  std::unique_ptr<Sequence> PopWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  // One that PopWaiting gave and that does not fit yet, or that lost its memory.
  void PutBack(std::unique_ptr<Sequence> sequence) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAdmitted(base::SequenceId id) ABSL_LOCKS_EXCLUDED(mutex_);
  void PublishLoad(std::int64_t running, const KvBlockManager::Counts& blocks) ABSL_LOCKS_EXCLUDED(mutex_);
  // Around a request's terminal event. Before it its id becomes free again: whoever hears of the end may use
  // it at once. After it, and not earlier, Stop counts it as ended.
  void FreeId(absl::string_view request_id) ABSL_LOCKS_EXCLUDED(mutex_);
  void CountEnd() ABSL_LOCKS_EXCLUDED(mutex_);
  // The engine thread has ended; what it can no longer answer.
  std::vector<ForgetRequest> Exit() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Beat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowQueue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Mail TakeMail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock now_;
  SchedulerMetrics& metrics_;

  mutable base::Mutex mutex_;
  base::CondVar work_;  // there is something to do, for the engine thread
  base::CondVar idle_;  // nothing is in flight any more, or the thread has ended
  RequestQueue queue_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, base::SequenceId> in_flight_ ABSL_GUARDED_BY(mutex_);  // Post until FreeId
  std::int64_t num_unended_ ABSL_GUARDED_BY(mutex_) = 0;  // Post until CountEnd
  std::vector<std::pair<base::SequenceId, CancelReason>> cancelled_ ABSL_GUARDED_BY(mutex_);
  std::vector<ForgetRequest> forget_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 0;
  LoadSnapshot load_ ABSL_GUARDED_BY(mutex_);  // but for `waiting`
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool exited_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace comoe::batching
