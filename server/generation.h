// One Generate or GenerateStream RPC, from its arrival to its one end. Knows no gRPC: it speaks to a
// transport, which tests replace.
//
// Threads. A worker thread checks the request, tokenises it and submits it. The scheduler's thread reports
// tokens, gRPC's report that a write is done or the client gone: both only leave a note in the mailbox and
// wake the output thread. Everything that is sent, and the end, is decided by RunOutput on the one output
// thread of this RPC; so there is one write in flight and one Finish without a race to win.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comoe/v1/inference.pb.h"
#include "engine/base/sync.h"
#include "scheduler/batching/request.h"
#include "server/config.h"
#include "server/output_threads.h"
#include "server/request_metrics.h"
#include "server/serving_state.h"
#include "server/text_stream.h"
#include "server/validation.h"
#include "server/worker_pool.h"

namespace comoe::server {

// What every generation uses. All of it outlives every generation.
struct GenerationServices {
  ServingState& state;
  WorkerPool& workers;
  OutputThreads& output;
  RequestMetrics& metrics;
  const Limits& limits;
};

// Called by the output thread only. After Finish or WriteAndFinish the transport may be gone: neither is
// touched.
class StreamTransport {
 public:
  virtual ~StreamTransport() = default;
  // `message` stays as it is until Generation::WriteDone, which permits the next write.
  virtual void Write(const v1::GenerateStreamResponse& message) = 0;
  // No WriteDone follows; `message` stays as it is while the transport lives.
  virtual void WriteAndFinish(const v1::GenerateStreamResponse& message, const absl::Status& status) = 0;
  virtual void Finish(const absl::Status& status) = 0;
  // Gives up on a reader that does not read: the write in flight is done soon, not ok.
  virtual void Abandon() = 0;
};

class UnaryTransport {
 public:
  virtual ~UnaryTransport() = default;
  virtual v1::GenerateResponse& response() = 0;  // until Finish
  virtual void Finish(const absl::Status& status) = 0;
};

class Generation : public batching::RequestObserver,
                   public OutputTask,
                   public std::enable_shared_from_this<Generation> {
 public:
  // Never blocks. Once.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // The client has left or its deadline has passed. Any thread, any time.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // The transport's write is done; not ok: the stream is broken.
  void WriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);

  void OnStarted() override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTokens(absl::Span<const batching::GeneratedToken> tokens) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(const batching::RequestOutcome& outcome) override ABSL_LOCKS_EXCLUDED(mutex_);

  void RunOutput() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool output_done() const override { return done_; }

 protected:
  // `deadline` is the RPC's; InfiniteFuture if it has none.
  Generation(Method method, absl::Time deadline, const GenerationServices& services);

  // On a worker thread.
  virtual absl::StatusOr<GenerationSpec> Parse(const RequestBounds& bounds) const = 0;
  virtual const v1::GenerateRequest& request() const = 0;
  // On the output thread: looks at what is known and sends what can be sent.
  virtual void Advance() = 0;

  // What the output thread knows, confined to it.
  const GenerationSpec& spec() const { return spec_; }
  const std::string& model_name() const { return backend_->model.name; }
  const Limits& limits() const { return services_.limits; }
  bool started() const { return started_; }
  bool write_in_flight() const { return write_in_flight_; }
  void set_write_in_flight();
  absl::Duration write_age() const;
  const std::optional<batching::RequestOutcome>& outcome() const { return outcome_; }
  // Tokens that have not been taken yet, and the text that they add.
  std::size_t num_pending_tokens() const { return pending_.size(); }
  // Appends what all pending tokens add to `message` (a Delta or a Choice), as far as it is wanted; with the
  // text that was held back at the end.
  template <typename Message>
  void TakePending(Message* message);
  std::int64_t num_taken_tokens() const { return num_taken_; }
  bool nothing_left() const { return pending_.empty() && (flushed_ || !outcome_.has_value()); }

  // The status to end with when the RPC cannot go on: refused, client gone, or broken. Empty otherwise.
  std::optional<absl::Status> Failure() const;
  // Ends the request in the scheduler because its reader is too slow.
  void EndForSlowReader();
  bool ending_for_slow_reader() const { return slow_reader_; }
  // Every end passes here, right before the transport's Finish: metrics, and no output after it.
  void RecordEnd(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What the other threads leave for the output thread.
  struct Mail {
    bool prepared = false;  // the worker is done with the request
    absl::Status refusal;   // of a prepared one
    Rejection rejection = Rejection::kNone;
    bool cancelled = false;
    bool started = false;
    std::vector<base::TokenId> tokens;
    std::vector<absl::Duration> emissions;  // when tokens came
    std::optional<batching::RequestOutcome> outcome;
    bool write_done = false;
    bool write_ok = true;
  };
  struct Refusal {
    absl::Status status;
    Rejection rejection = Rejection::kNone;
  };

  void Prepare() ABSL_LOCKS_EXCLUDED(mutex_);
  Refusal PrepareAndSubmit() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Submit() ABSL_LOCKS_EXCLUDED(mutex_);
  void Refuse(const Refusal& refusal) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadMail() ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelInScheduler() ABSL_LOCKS_EXCLUDED(mutex_);
  bool DeadlinePassed() const;
  void Wake();

  // Constant after construction.
  const Method method_;
  const absl::Time received_;
  const absl::Duration arrival_;  // the same by the monotonic clock
  const absl::Time deadline_;
  const GenerationServices services_;

  base::Mutex mutex_;
  Mail mail_ ABSL_GUARDED_BY(mutex_);
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // mail is thrown away

  // Written by the worker before Mail::prepared, confined to the output thread after it.
  const Backend* backend_ = nullptr;
  std::string request_id_;  // constant once submitted
  GenerationSpec spec_;
  std::optional<TextStream> text_;

  // Confined to the output thread.
  bool prepared_ = false;
  absl::Status refusal_;
  Rejection rejection_ = Rejection::kNone;
  bool cancelled_ = false;
  bool broken_ = false;  // a write failed
  bool slow_reader_ = false;
  bool started_ = false;
  bool write_in_flight_ = false;
  bool flushed_ = false;
  bool done_ = false;
  absl::Duration write_started_;
  absl::Duration first_token_;
  absl::Duration last_token_;
  std::int64_t num_received_ = 0;  // tokens
  std::int64_t num_taken_ = 0;
  std::vector<base::TokenId> pending_;
  std::optional<batching::RequestOutcome> outcome_;
};

class StreamGeneration final : public Generation {
 public:
  // Both outlive what the transport's Finish ends.
  StreamGeneration(const v1::GenerateStreamRequest& request, StreamTransport& transport, absl::Time deadline,
                   const GenerationServices& services);

 private:
  absl::StatusOr<GenerationSpec> Parse(const RequestBounds& bounds) const override;
  const v1::GenerateRequest& request() const override { return request_.request(); }
  void Advance() override;
  void WatchReader();
  void WriteStarted();
  // False: the tokens gave nothing to send yet.
  bool WriteDelta();
  void WriteFinished();

  const v1::GenerateStreamRequest& request_;
  StreamTransport& transport_;
  bool started_sent_ = false;
  v1::GenerateStreamResponse message_;  // one for the whole stream; the transport reads it during a write
};

class UnaryGeneration final : public Generation {
 public:
  UnaryGeneration(const v1::GenerateRequest& request, UnaryTransport& transport, absl::Time deadline,
                  const GenerationServices& services);

 private:
  absl::StatusOr<GenerationSpec> Parse(const RequestBounds& bounds) const override;
  const v1::GenerateRequest& request() const override { return request_; }
  void Advance() override;
  void FillResponse(const batching::RequestOutcome& outcome);

  const v1::GenerateRequest& request_;
  UnaryTransport& transport_;
  v1::GenerateResponse::Choice choice_;
};

}  // namespace comoe::server
