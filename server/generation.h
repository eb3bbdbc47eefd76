// One Generate or GenerateStream RPC, from its arrival to its one end. Knows no gRPC: it speaks to a
// transport, which tests replace.
//
// Threads. A worker thread checks the request, tokenises it and submits its choices. The scheduler's thread
// reports to the choices, gRPC's report that a write is done or the client gone: all only leave a note and
// wake the output thread. Everything that is sent, and the end, is decided by RunOutput on the one output
// thread of this RPC; so there is one write in flight and one Finish without a race to win.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comoe/v1/inference.pb.h"
#include "engine/base/sync.h"
#include "scheduler/batching/request.h"
#include "server/abandon_gate.h"
#include "server/choice.h"
#include "server/config.h"
#include "server/output_threads.h"
#include "server/request_metrics.h"
#include "server/request_registry.h"
#include "server/serving_state.h"
#include "server/stream_backlog.h"
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
  RequestRegistry& registry;
  StreamBacklog& backlog;
  // The scheduler says when it has told everybody of a step: OutputThreads::Flush.
  const std::atomic<bool>& gathers_wakes;
};

// Called by the output thread only. Once Finish has been called (WriteAndFinish for streams) only Abandon
// may follow, and that not after TransportDone.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void Finish(const absl::Status& status) = 0;
  // Gives up on a reader that does not read: what is under way is done soon, not ok.
  virtual void Abandon() = 0;
  virtual std::string peer() const = 0;  // for the log
};

class Generation : public OutputTask, public std::enable_shared_from_this<Generation> {
 public:
  // Never blocks. Once.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // The client has left or its deadline has passed. Any thread, any time.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it as a client's Abort asks. False: it has ended already. Any thread.
  bool Abort() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends it with an error though the scheduler has not: its thread hangs, and may never say more. Any thread,
  // for generations in the registry.
  void FailByEngine(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // The transport's write is done; not ok: the stream is broken.
  void WriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);
  // The RPC is over and the transport about to go. May block for a moment (AbandonGate).
  void TransportDone() { gate_.Close(); }

  void RunOutput() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool output_done() const override { return gate_.closed(); }

 protected:
  // `deadline` is the RPC's; InfiniteFuture if it has none. `transport` outlives what its Finish ends.
  Generation(Method method, absl::Time deadline, Transport& transport, const GenerationServices& services);

  // On a worker thread.
  virtual absl::StatusOr<GenerationSpec> Parse(const RequestBounds& bounds) const = 0;
  virtual const v1::GenerateRequest& request() const = 0;
  // On the output thread: looks at what is known and sends what can be sent.
  virtual void Advance() = 0;

  // What the output thread knows, confined to it.
  const GenerationSpec& spec() const { return spec_; }
  const std::string& model_name() const { return backend_->model.name; }
  const Limits& limits() const { return services_.limits; }
  const GenerationServices& services() const { return services_; }
  std::vector<std::unique_ptr<Choice>>& choices() { return choices_; }
  bool started() const;
  // The prompt's log-probabilities are known, or never will be.
  bool prompt_scored() const;
  bool all_complete() const;
  std::int64_t num_waiting_tokens() const;
  bool write_in_flight() const { return write_in_flight_; }
  void set_write_in_flight();
  absl::Duration write_age() const;
  // Of what has been taken from the choices, the prompt counted once.
  batching::Usage usage() const;
  batching::RequestTiming timing() const;

  // The status to end with when the RPC cannot go on: refused, client gone, or broken. Empty otherwise.
  std::optional<absl::Status> Failure() const;
  // OK if all choices are whole. Precondition: all_complete().
  absl::Status StatusOfChoices() const;
  // Ends the request in the scheduler because its reader is too slow.
  void EndForSlowReader(absl::string_view why);
  bool ending_for_slow_reader() const { return slow_reader_; }
  // The answer would be larger than answers may be; empty if not.
  std::optional<absl::Status> TooLarge(absl::string_view what, std::size_t bytes) const;
  void Abandon();
  // Ends the RPC with no (further) message.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Every end passes here, right before the transport's Finish: metrics, log, and no output after it.
  void RecordEnd(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // What the other threads leave for the output thread.
  struct Mail {
    bool prepared = false;  // the worker is done with the request
    absl::Status refusal;   // of a prepared one
    Rejection rejection = Rejection::kNone;
    bool cancelled = false;
    bool write_done = false;
    bool write_ok = true;
  };
  struct Refusal {
    absl::Status status;
    Rejection rejection = Rejection::kNone;
  };

  void Prepare() ABSL_LOCKS_EXCLUDED(mutex_);
  Refusal PrepareAndSubmit() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status TokenizePrompt(const RequestBounds& bounds, Rejection* rejection);
  void MakeChoices();
  absl::Status Submit() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status SubmitChoices();
  void Refuse(const Refusal& refusal) ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadMail() ABSL_LOCKS_EXCLUDED(mutex_);
  void ReadChoices();
  void ObserveTokens(const std::vector<absl::Duration>& gaps);
  absl::Duration FirstToken() const;  // of all choices, by the monotonic clock; zero: none yet
  void EndTogether();
  void WatchEnd();
  bool CancelInScheduler() ABSL_LOCKS_EXCLUDED(mutex_);
  bool CancelChoices();
  bool DeadlinePassed() const;
  Terminal MakeTerminal(const absl::Status& status) const;
  void LogEnd(const Terminal& terminal) const;
  void Wake();

  // Constant after construction.
  const Method method_;
  const absl::Time received_;
  const absl::Duration arrival_;  // the same by the monotonic clock
  const absl::Time deadline_;
  Transport& transport_;
  const GenerationServices services_;

  AbandonGate gate_;  // self-synchronised
  base::Mutex mutex_;
  Mail mail_ ABSL_GUARDED_BY(mutex_);
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancel_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // it has ended

  // Written by the worker before Mail::prepared, constant after it.
  const Backend* backend_ = nullptr;
  GenerationSpec spec_;
  ChoiceContext context_{spec_, nullptr, nullptr, {}, nullptr};
  // Until this goes, for the scheduler may call them until then; none if it is refused early.
  std::vector<std::unique_ptr<Choice>> choices_;
  bool registered_ = false;

  // Confined to the output thread.
  bool prepared_ = false;
  absl::Status refusal_;
  Rejection rejection_ = Rejection::kNone;
  bool cancelled_ = false;
  bool broken_ = false;  // a write failed
  bool slow_reader_ = false;
  const Choice* culprit_ = nullptr;  // the first choice that could not go on
  bool first_token_observed_ = false;
  bool write_in_flight_ = false;
  absl::Duration write_started_;
  bool ended_ = false;  // RecordEnd was here
  bool abandoned_ = false;
  absl::Duration end_time_;
};

}  // namespace comoe::server
