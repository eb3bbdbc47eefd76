#include "scheduler/batching/mailbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace comoe::batching {
namespace {

// An idle engine thread shows this often that it lives; monitoring calls 30 s without a sign dead.
constexpr absl::Duration kIdleHeartbeat = absl::Seconds(5);
// Longest single wait of Stop, which looks again after it: keeps sums of times far from overflow.
constexpr absl::Duration kLongestWait = absl::Hours(1);

}  // namespace

Mailbox::Mailbox(std::int64_t max_waiting_requests, std::int64_t max_waiting_tokens, Clock now,
                 SchedulerMetrics& metrics)
    : now_(std::move(now)), metrics_(metrics), queue_(max_waiting_requests, max_waiting_tokens) {
  base::MutexLock lock(&mutex_);
  Beat();
}

absl::Status Mailbox::Post(std::vector<std::unique_ptr<Sequence>> sequences) {
  base::MutexLock lock(&mutex_);
  if (draining_) {
    return absl::UnavailableError("the service is shutting down");
  }
  std::int64_t tokens = 0;
  for (const std::unique_ptr<Sequence>& sequence : sequences) {
    tokens += sequence->num_pending();
    if (sequence->request.deadline <= sequence->submitted) {
      return absl::DeadlineExceededError("the deadline passed before the request could be queued");
    }
    if (in_flight_.contains(sequence->request.id)) {
      return absl::AlreadyExistsError(absl::StrCat("request id '", sequence->request.id, "' is in flight"));
    }
  }
  if (!queue_.HasRoom(static_cast<std::int64_t>(sequences.size()), tokens)) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", queue_.size(), " requests of ",
                                                     queue_.num_tokens(),
                                                     " tokens are waiting; try again later"));
  }
  for (std::unique_ptr<Sequence>& sequence : sequences) {
    sequence->id = base::SequenceId{next_sequence_++};
    in_flight_.emplace(sequence->request.id, sequence->id);
    ++num_unended_;
    queue_.PutBack(std::move(sequence));
  }
  ShowQueue();
  work_.Signal();
  return absl::OkStatus();
}

void Mailbox::ShowQueue() {
  metrics_.requests_waiting.Set(static_cast<double>(queue_.size()));
  metrics_.requests_waiting_tokens.Set(static_cast<double>(queue_.num_tokens()));
}

void Mailbox::ForgetPrefixes(ForgetRequest request) {
  {
    base::MutexLock lock(&mutex_);
    if (!exited_) {
      forget_.push_back(std::move(request));
      work_.Signal();
      return;
    }
  }
  request.done(absl::UnavailableError("the service is shutting down"));
}

bool Mailbox::Cancel(absl::string_view request_id, CancelReason reason) {
  base::MutexLock lock(&mutex_);
  const auto found = in_flight_.find(request_id);
  if (found == in_flight_.end()) {
    return false;
  }
  // By sequence id, which is never used again: a late cancel cannot hit the next request of that name.
  cancelled_.emplace_back(found->second, reason);
  work_.Signal();
  return true;
}

void Mailbox::BeginDrain() {
  base::MutexLock lock(&mutex_);
  draining_ = true;
  work_.Signal();
}

bool Mailbox::Stop(absl::Time until) {
  base::MutexLock lock(&mutex_);
  draining_ = true;
  work_.Signal();
  while (num_unended_ > 0) {
    const absl::Duration left = until - now_();
    if (left <= absl::ZeroDuration()) {
      break;
    }
    idle_.WaitWithTimeout(&mutex_, std::min(left, kLongestWait));
  }
  const bool all_finished = num_unended_ == 0;
  stopping_ = true;
  work_.Signal();
  while (!exited_) {
    idle_.Wait(&mutex_);
  }
  return all_finished;
}

LoadSnapshot Mailbox::load() const {
  base::MutexLock lock(&mutex_);
  LoadSnapshot snapshot = load_;
  snapshot.waiting = queue_.size();
  snapshot.waiting_tokens = queue_.num_tokens();
  return snapshot;
}

Mail Mailbox::Wait(bool busy) {
  base::MutexLock lock(&mutex_);
  Beat();
  while (!busy && queue_.empty() && cancelled_.empty() && forget_.empty() && !stopping_) {
    work_.WaitWithTimeout(&mutex_, kIdleHeartbeat);
    Beat();
  }
  return TakeMail();
}

Mail Mailbox::Collect() {
  base::MutexLock lock(&mutex_);
  Beat();
  return TakeMail();
}

void Mailbox::Beat() {
  load_.last_progress = now_();
  metrics_.engine_heartbeat_timestamp_seconds.Set(
      absl::ToDoubleSeconds(load_.last_progress - absl::UnixEpoch()));
}

Mail Mailbox::TakeMail() {
  Mail mail;
  mail.stop = stopping_;
  for (const auto& [id, reason] : std::exchange(cancelled_, {})) {
    if (std::unique_ptr<Sequence> waiting = queue_.Remove(id); waiting != nullptr) {
      mail.withdrawn.emplace_back(std::move(waiting), reason);
    } else {
      mail.cancelled.emplace_back(id, reason);
    }
  }
  mail.expired = queue_.TakeExpired(now_());
  if (draining_) {
    mail.drained = queue_.TakeNeverRun();
  }
  mail.forget = std::exchange(forget_, {});
  ShowQueue();
  return mail;
}

std::unique_ptr<Sequence> Mailbox::PopWaiting() {
  base::MutexLock lock(&mutex_);
  std::unique_ptr<Sequence> sequence = queue_.Pop();
  ShowQueue();
  return sequence;
}

void Mailbox::PutBack(std::unique_ptr<Sequence> sequence) {
  base::MutexLock lock(&mutex_);
  queue_.PutBack(std::move(sequence));
  ShowQueue();
}

void Mailbox::NoteAdmitted(base::SequenceId id) {
  base::MutexLock lock(&mutex_);
  queue_.CountPassedOver(id);
}

void Mailbox::PublishLoad(std::int64_t running, const KvBlockManager::Counts& blocks) {
  base::MutexLock lock(&mutex_);
  load_.running = running;
  load_.used_blocks = blocks.used;
  load_.cached_blocks = blocks.cached;
  load_.total_blocks = blocks.total();
}

void Mailbox::FreeId(absl::string_view request_id) {
  base::MutexLock lock(&mutex_);
  in_flight_.erase(request_id);
}

void Mailbox::CountEnd() {
  base::MutexLock lock(&mutex_);
  if (--num_unended_ == 0) {
    idle_.SignalAll();
  }
}

std::vector<ForgetRequest> Mailbox::Exit() {
  base::MutexLock lock(&mutex_);
  exited_ = true;
  idle_.SignalAll();
  return std::exchange(forget_, {});
}

}  // namespace comoe::batching
