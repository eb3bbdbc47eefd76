#include "server/stream_backlog.h"

#include <algorithm>

namespace comoe::server {

void StreamBacklog::Account::Set(std::int64_t tokens, const std::shared_ptr<OutputTask>& task) {
  std::shared_ptr<OutputTask> to_wake;
  {
    base::MutexLock lock(&backlog_.mutex_);
    if (tokens == tokens_ || must_end_) {
      return;
    }
    backlog_.total_ += tokens - tokens_;
    tokens_ = tokens;
    task_ = task;
    if (tokens > 0) {
      backlog_.behind_.insert(this);
    } else {
      backlog_.behind_.erase(this);
    }
    if (backlog_.total_ > backlog_.limits_.max_total_backlog_tokens) {
      Account& last =
          **std::max_element(backlog_.behind_.begin(), backlog_.behind_.end(),
                             [](const Account* a, const Account* b) { return a->tokens_ < b->tokens_; });
      // From here on its tokens no longer count: they are about to go.
      last.must_end_ = true;
      backlog_.total_ -= last.tokens_;
      backlog_.behind_.erase(&last);
      to_wake = last.task_.lock();
    }
    backlog_.metrics_.SetStreamBacklog(backlog_.total_);
  }
  if (to_wake != nullptr) {
    backlog_.output_.Wake(to_wake);
  }
}

bool StreamBacklog::Account::must_end() const {
  base::MutexLock lock(&backlog_.mutex_);
  return must_end_;
}

}  // namespace comoe::server
