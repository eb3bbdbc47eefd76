// How many tokens wait for the readers of all streams together, and a bound on it: where it is passed, the
// stream that is furthest behind is ended.
#pragma once

#include <cstdint>
#include <memory>
#include <set>

#include "engine/base/sync.h"
#include "server/config.h"
#include "server/output_threads.h"
#include "server/request_metrics.h"

namespace comoe::server {

// Thread-safe. The arguments outlive it.
class StreamBacklog {
 public:
  StreamBacklog(const Limits& limits, OutputThreads& output, RequestMetrics& metrics)
      : limits_(limits), output_(output), metrics_(metrics) {}
  StreamBacklog(const StreamBacklog&) = delete;
  StreamBacklog& operator=(const StreamBacklog&) = delete;

  // One stream's part. Thread-safe; the backlog outlives it.
  class Account {
   public:
    explicit Account(StreamBacklog& backlog) : backlog_(backlog) {}
    ~Account() { Set(0, nullptr); }
    Account(const Account&) = delete;
    Account& operator=(const Account&) = delete;

    // `task` is woken when it is this stream that has to end.
    void Set(std::int64_t tokens, const std::shared_ptr<OutputTask>& task);
    // This stream was the furthest behind when the bound was passed; it stays so.
    bool must_end() const;

   private:
    friend class StreamBacklog;
    StreamBacklog& backlog_;
    std::int64_t tokens_ = 0;  // these three under the backlog's mutex
    bool must_end_ = false;
    std::weak_ptr<OutputTask> task_;
  };

 private:
  const Limits& limits_;
  OutputThreads& output_;
  RequestMetrics& metrics_;

  mutable base::Mutex mutex_;
  std::int64_t total_ ABSL_GUARDED_BY(mutex_) = 0;     // of the accounts that need not end
  std::set<Account*> behind_ ABSL_GUARDED_BY(mutex_);  // those with tokens, of the same
};

}  // namespace comoe::server
