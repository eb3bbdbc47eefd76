#include "server/generation.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "server/messages.h"
#include "server/status_conversion.h"

namespace comoe::server {
namespace {

using batching::FinishReason;

EarlyEnd EarlyEndOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kAborted:
      return EarlyEnd::kAbort;
    case FinishReason::kDeadline:
      return EarlyEnd::kDeadline;
    case FinishReason::kDraining:
      return EarlyEnd::kDrain;
    case FinishReason::kError:
      return EarlyEnd::kEngineError;
    case FinishReason::kStopEos:
    case FinishReason::kStopToken:
    case FinishReason::kMaxTokens:
    case FinishReason::kContextLength:
      break;
  }
  return EarlyEnd::kNone;
}

}  // namespace

Generation::Generation(Method method, absl::Time deadline, const GenerationServices& services)
    : method_(method),
      received_(absl::Now()),
      arrival_(MonotonicNow()),
      deadline_(deadline),
      services_(services) {}

void Generation::Wake() { services_.output.Wake(shared_from_this()); }

void Generation::Start() {
  const std::shared_ptr<Generation> self = shared_from_this();
  services_.output.Add(self);
  if (!services_.workers.Post([self] { self->Prepare(); })) {
    Refuse({absl::ResourceExhaustedError("too many requests wait to be tokenised: try again later"),
            Rejection::kQueueFull});
  }
}

void Generation::Refuse(const Refusal& refusal) {
  {
    base::MutexLock lock(&mutex_);
    mail_.prepared = true;
    mail_.refusal = refusal.status;
    mail_.rejection = refusal.rejection;
  }
  Wake();
}

void Generation::Prepare() {
  // Taken before anything can refuse: the phase may change meanwhile.
  const Phase phase = services_.state.phase();
  Refusal refusal = PrepareAndSubmit();
  if (!refusal.status.ok() && refusal.rejection == Rejection::kNone) {
    refusal.rejection = RejectionOf(refusal.status, phase);
  }
  Refuse(refusal);  // with OK: it is accepted
}

Generation::Refusal Generation::PrepareAndSubmit() {
  const absl::StatusOr<const Backend*> backend = services_.state.Accept();
  if (!backend.ok()) {
    return {backend.status()};
  }
  backend_ = *backend;
  const RequestBounds bounds = {backend_->model, backend_->max_positions, backend_->tokenizer != nullptr,
                                services_.limits};
  absl::StatusOr<GenerationSpec> spec = Parse(bounds);
  if (!spec.ok()) {
    return {spec.status()};
  }
  spec_ = *std::move(spec);
  if (spec_.prompt_is_text) {
    absl::StatusOr<std::vector<base::TokenId>> tokens =
        backend_->tokenizer->Encode(request().text(), spec_.add_special_tokens);
    if (!tokens.ok()) {
      return {base::Annotate(tokens.status(), "text")};
    }
    const bool empty = tokens->empty();
    if (const absl::Status status = SetPrompt(*std::move(tokens), bounds, &spec_); !status.ok()) {
      return {status, empty ? Rejection::kInvalid : Rejection::kTooLong};
    }
  }
  if (spec_.output.return_text) {
    TextStreamOptions options;
    options.skip_special_tokens = spec_.output.skip_special_tokens;
    if (!spec_.output.include_stop_in_output) {
      options.hidden_tokens = spec_.request.stop.stop_token_ids;
      if (!spec_.request.stop.ignore_eos) {
        const std::vector<base::TokenId>& eos = backend_->model.eos_token_ids;
        options.hidden_tokens.insert(options.hidden_tokens.end(), eos.begin(), eos.end());
      }
    }
    text_.emplace(*backend_->tokenizer, std::move(options));
  }
  return {Submit()};
}

absl::Status Generation::Submit() {
  request_id_ = spec_.request.id;
  batching::Request request = spec_.request;
  request.received = received_;
  request.deadline = deadline_;
  {
    base::MutexLock lock(&mutex_);
    if (cancel_wanted_) {
      return absl::CancelledError("the client left before its request was queued");
    }
  }
  COMOE_RETURN_IF_ERROR(backend_->scheduler->Submit(std::move(request), shared_from_this()));
  bool cancel = false;
  {
    base::MutexLock lock(&mutex_);
    submitted_ = true;
    cancel = cancel_wanted_;
  }
  if (cancel) {
    backend_->scheduler->Cancel(request_id_);
  }
  return absl::OkStatus();
}

// Only what this RPC has submitted: another's request may have the id that ours was refused for.
void Generation::CancelInScheduler() {
  {
    base::MutexLock lock(&mutex_);
    cancel_wanted_ = true;
    if (!submitted_) {
      return;
    }
  }
  backend_->scheduler->Cancel(request_id_);
}

void Generation::Cancel() {
  CancelInScheduler();
  {
    base::MutexLock lock(&mutex_);
    mail_.cancelled = true;
  }
  Wake();
}

void Generation::WriteDone(bool ok) {
  {
    base::MutexLock lock(&mutex_);
    mail_.write_done = true;
    mail_.write_ok = ok;
  }
  Wake();
}

void Generation::OnStarted() {
  {
    base::MutexLock lock(&mutex_);
    mail_.started = true;
  }
  Wake();
}

void Generation::OnTokens(absl::Span<const batching::GeneratedToken> tokens) {
  const absl::Duration now = MonotonicNow();
  {
    base::MutexLock lock(&mutex_);
    if (closed_) {
      return;
    }
    for (const batching::GeneratedToken& token : tokens) {
      mail_.tokens.push_back(token.id);
    }
    mail_.emissions.push_back(now);
  }
  Wake();
}

void Generation::OnFinished(const batching::RequestOutcome& outcome) {
  {
    base::MutexLock lock(&mutex_);
    mail_.outcome = outcome;
  }
  Wake();
}

void Generation::ReadMail() {
  Mail mail;
  {
    base::MutexLock lock(&mutex_);
    if (mail_.prepared && !prepared_) {
      prepared_ = true;
      refusal_ = mail_.refusal;
      rejection_ = mail_.rejection;
    }
    cancelled_ = cancelled_ || mail_.cancelled;
    started_ = started_ || mail_.started;
    mail.tokens.swap(mail_.tokens);
    mail.emissions.swap(mail_.emissions);
    if (mail_.outcome.has_value()) {
      outcome_ = std::exchange(mail_.outcome, std::nullopt);
    }
    if (std::exchange(mail_.write_done, false)) {
      write_in_flight_ = false;
      broken_ = broken_ || !mail_.write_ok;
    }
  }
  for (const absl::Duration time : mail.emissions) {
    if (first_token_ == absl::ZeroDuration()) {
      first_token_ = time;
      services_.metrics.ObserveFirstToken(time - arrival_);
    } else {
      services_.metrics.ObserveNextToken(time - last_token_);
    }
    last_token_ = time;
  }
  num_received_ += static_cast<std::int64_t>(mail.tokens.size());
  pending_.insert(pending_.end(), mail.tokens.begin(), mail.tokens.end());
}

void Generation::RunOutput() {
  if (done_) {
    return;
  }
  ReadMail();
  // Until then a worker reads the request, which the end of the RPC would free.
  if (prepared_) {
    Advance();
  }
}

void Generation::set_write_in_flight() {
  write_in_flight_ = true;
  write_started_ = MonotonicNow();
}

absl::Duration Generation::write_age() const { return MonotonicNow() - write_started_; }

template <typename Message>
void Generation::TakePending(Message* message) {
  for (const base::TokenId id : pending_) {
    if (spec_.output.return_token_ids) {
      message->add_token_ids(ToUint32(id));
    }
    if (spec_.output.return_token_pieces) {
      message->add_token_pieces(backend_->tokenizer->TokenBytes(id));
    }
    if (text_.has_value()) {
      text_->Push(id, message->mutable_text());
    }
  }
  num_taken_ += static_cast<std::int64_t>(pending_.size());
  pending_.clear();
  if (outcome_.has_value() && !flushed_) {
    flushed_ = true;
    if (text_.has_value()) {
      text_->Flush(message->mutable_text());
    }
  }
}

// A client whose deadline passes resets the stream, which arrives as a cancel, and before our own idea of the
// deadline: that one starts later by the way here, and gRPC rounds time-outs up (to three digits: 1 %).
bool Generation::DeadlinePassed() const {
  if (deadline_ == absl::InfiniteFuture()) {
    return false;
  }
  const absl::Duration tolerance = absl::Milliseconds(20) + (deadline_ - received_) / 50;
  return absl::Now() >= deadline_ - tolerance;
}

std::optional<absl::Status> Generation::Failure() const {
  if (!refusal_.ok()) {
    return refusal_;
  }
  if (slow_reader_) {
    return absl::AbortedError("the stream was not read fast enough");
  }
  if (cancelled_ || broken_) {
    if (DeadlinePassed()) {
      return absl::DeadlineExceededError("the deadline passed before the completion was done");
    }
    return absl::CancelledError("the client left");
  }
  return std::nullopt;
}

void Generation::EndForSlowReader() {
  slow_reader_ = true;
  base::Logf(base::LogLevel::kWarning, "server", "request %s: its reader is %d tokens behind; it is ended",
             request_id_, static_cast<std::int64_t>(pending_.size()));
  CancelInScheduler();
}

void Generation::RecordEnd(const absl::Status& status) {
  {
    base::MutexLock lock(&mutex_);
    closed_ = true;
  }
  done_ = true;
  Terminal terminal;
  terminal.method = method_;
  terminal.code = status.code();
  terminal.end_to_end = MonotonicNow() - arrival_;
  if (num_received_ > 1) {
    terminal.per_output_token = (last_token_ - first_token_) / (num_received_ - 1);
  }
  if (!refusal_.ok()) {
    terminal.rejection = rejection_;
  } else if (slow_reader_) {
    terminal.finish_reason = FinishReason::kAborted;
    terminal.early_end = EarlyEnd::kSlowConsumer;
  } else if (outcome_.has_value() && !cancelled_ && !broken_) {
    terminal.finish_reason = outcome_->reason;
    terminal.early_end = EarlyEndOf(outcome_->reason);
  } else {
    const bool late = status.code() == absl::StatusCode::kDeadlineExceeded;
    terminal.finish_reason = late ? FinishReason::kDeadline : FinishReason::kAborted;
    terminal.early_end = late ? EarlyEnd::kDeadline : EarlyEnd::kClientCancel;
  }
  services_.metrics.RecordTerminal(terminal);
  base::Logf(base::LogLevel::kDebug, "server", "request %s: %s after %d tokens", request_id_,
             std::string(CodeName(status.code())), num_received_);
}

StreamGeneration::StreamGeneration(const v1::GenerateStreamRequest& request, StreamTransport& transport,
                                   absl::Time deadline, const GenerationServices& services)
    : Generation(Method::kGenerateStream, deadline, services), request_(request), transport_(transport) {}

absl::StatusOr<GenerationSpec> StreamGeneration::Parse(const RequestBounds& bounds) const {
  return ParseGenerateStreamRequest(request_, bounds);
}

void StreamGeneration::Advance() {
  if (write_in_flight()) {
    WatchReader();  // a failure waits for the write too: gRPC ends it soon when the call is cancelled
    return;
  }
  if (const std::optional<absl::Status> failure = Failure(); failure.has_value()) {
    RecordEnd(*failure);
    transport_.Finish(*failure);
    return;
  }
  if (started() && !started_sent_) {
    WriteStarted();
    return;
  }
  if (!nothing_left() && WriteDelta()) {
    return;
  }
  if (outcome().has_value()) {
    WriteFinished();
  }
}

void StreamGeneration::WatchReader() {
  if (ending_for_slow_reader()) {
    return;
  }
  const bool behind = num_pending_tokens() > static_cast<std::size_t>(limits().max_stream_backlog_tokens);
  if (behind || write_age() > limits().stream_stall_timeout) {
    EndForSlowReader();
    transport_.Abandon();
  }
}

void StreamGeneration::WriteStarted() {
  started_sent_ = true;
  message_.Clear();
  v1::GenerateStreamResponse::Started* event = message_.mutable_started();
  event->set_request_id(spec().request.id);
  event->set_model(model_name());
  event->set_prompt_tokens(ToUint32(static_cast<std::int64_t>(spec().request.prompt.size())));
  event->set_seed(spec().request.sampling.seed);
  set_write_in_flight();
  transport_.Write(message_);
}

bool StreamGeneration::WriteDelta() {
  message_.Clear();
  v1::GenerateStreamResponse::Delta* delta = message_.mutable_delta();
  TakePending(delta);
  if (delta->token_ids().empty() && delta->token_pieces().empty() && delta->text().empty()) {
    return false;
  }
  if (spec().output.include_usage_every_chunk) {
    batching::Usage usage;
    usage.prompt_tokens = static_cast<std::int64_t>(spec().request.prompt.size());
    usage.completion_tokens = num_taken_tokens();
    ToMessage(usage, delta->mutable_usage());
  }
  set_write_in_flight();
  transport_.Write(message_);
  return true;
}

void StreamGeneration::WriteFinished() {
  const absl::Status status = StatusOfOutcome(*outcome());
  message_.Clear();
  v1::GenerateStreamResponse::Finished* event = message_.mutable_finished();
  event->set_finish_reason(ToMessage(outcome()->reason));
  if (outcome()->matched_token >= 0) {
    event->set_stop_token_id(ToUint32(outcome()->matched_token));
  }
  ToMessage(outcome()->usage, event->mutable_usage());
  if (spec().output.include_timing) {
    ToMessage(outcome()->timing, event->mutable_timing());
  }
  event->set_message(std::string(status.message()));
  RecordEnd(status);
  transport_.WriteAndFinish(message_, status);
}

UnaryGeneration::UnaryGeneration(const v1::GenerateRequest& request, UnaryTransport& transport,
                                 absl::Time deadline, const GenerationServices& services)
    : Generation(Method::kGenerate, deadline, services), request_(request), transport_(transport) {}

absl::StatusOr<GenerationSpec> UnaryGeneration::Parse(const RequestBounds& bounds) const {
  return ParseGenerateRequest(request_, bounds);
}

void UnaryGeneration::Advance() {
  if (const std::optional<absl::Status> failure = Failure(); failure.has_value()) {
    RecordEnd(*failure);
    transport_.Finish(*failure);
    return;
  }
  if (!nothing_left()) {
    TakePending(&choice_);
  }
  if (!outcome().has_value()) {
    return;
  }
  const absl::Status status = StatusOfOutcome(*outcome());
  if (status.ok()) {
    FillResponse(*outcome());
  }
  RecordEnd(status);
  transport_.Finish(status);
}

void UnaryGeneration::FillResponse(const batching::RequestOutcome& outcome) {
  choice_.set_finish_reason(ToMessage(outcome.reason));
  if (outcome.matched_token >= 0) {
    choice_.set_stop_token_id(ToUint32(outcome.matched_token));
  }
  v1::GenerateResponse& response = transport_.response();
  response.set_request_id(spec().request.id);
  response.set_model(model_name());
  *response.add_choices() = std::move(choice_);
  ToMessage(outcome.usage, response.mutable_usage());
  response.set_seed(spec().request.sampling.seed);
  ToMessage(outcome.timing, response.mutable_timing());
}

}  // namespace comoe::server
