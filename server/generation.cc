#include "server/generation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/status_macros.h"
#include "server/error_details.h"
#include "server/messages.h"

namespace comoe::server {

Generation::Generation(Method method, absl::Time deadline, Transport& transport,
                       const GenerationServices& services)
    : method_(method),
      received_(absl::Now()),
      arrival_(MonotonicNow()),
      deadline_(deadline),
      transport_(transport),
      services_(services) {}

void Generation::Wake() { services_.output.Wake(shared_from_this()); }

void Generation::Start() {
  const std::shared_ptr<Generation> self = shared_from_this();
  services_.metrics.RecordStart(method_);
  services_.output.Add(self);
  if (!services_.workers.Post(WorkerPool::Urgency::kGeneration, request().ByteSizeLong(),
                              [self] { self->Prepare(); })) {
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
    Rejection rejection = Rejection::kNone;
    if (const absl::Status status = TokenizePrompt(bounds, &rejection); !status.ok()) {
      return {method_ == Method::kGenerateStream ? PrefixField(status, "request.") : status, rejection};
    }
  }
  MakeChoices();
  return {Submit()};
}

absl::Status Generation::TokenizePrompt(const RequestBounds& bounds, Rejection* rejection) {
  absl::StatusOr<std::vector<base::TokenId>> tokens =
      backend_->tokenizer->Encode(request().text(), spec_.add_special_tokens);
  if (!tokens.ok()) {
    return WithField(base::Annotate(tokens.status(), "text"), "text");
  }
  const bool empty = tokens->empty();
  const absl::Status status = SetPrompt(*std::move(tokens), bounds, &spec_);
  *rejection = status.ok() ? Rejection::kNone : empty ? Rejection::kInvalid : Rejection::kTooLong;
  return status;
}

void Generation::MakeChoices() {
  context_.tokenizer = backend_->tokenizer;
  // The choices are part of this, so this lives while they do.
  context_.wake = [this] {
    services_.gathers_wakes ? services_.output.WakeLater(shared_from_this()) : Wake();
  };
  if (!spec_.stop_strings.empty()) {
    context_.stop_strings = std::make_shared<const StopStrings>(spec_.stop_strings);
  }
  if (!spec_.output.include_stop_in_output) {
    context_.hidden_tokens = spec_.request.stop.stop_token_ids;
    if (!spec_.request.stop.ignore_eos) {
      const std::vector<base::TokenId>& eos = backend_->model.eos_token_ids;
      context_.hidden_tokens.insert(context_.hidden_tokens.end(), eos.begin(), eos.end());
    }
  }
  spec_.request.received = received_;
  spec_.request.deadline = deadline_;
  for (std::int64_t i = 0; i < spec_.num_choices; ++i) {
    choices_.push_back(std::make_unique<Choice>(i, context_));
  }
}

absl::Status Generation::Submit() {
  {
    base::MutexLock lock(&mutex_);
    if (cancel_wanted_) {
      return absl::CancelledError("the client left before its request was queued");
    }
  }
  registered_ = services_.registry.Add(spec_.request.id, shared_from_this());
  if (!registered_) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("request id '", spec_.request.id, "' is in flight")),
        "REQUEST_ID_IN_FLIGHT");
  }
  COMOE_RETURN_IF_ERROR(SubmitChoices());
  bool cancel = false;
  {
    base::MutexLock lock(&mutex_);
    submitted_ = true;
    cancel = cancel_wanted_;
  }
  if (cancel) {
    CancelChoices();
  }
  return absl::OkStatus();
}

absl::Status Generation::SubmitChoices() {
  std::vector<batching::Submission> submissions;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    // The scheduler holds on to this RPC through its choice.
    submissions.push_back({choice->MakeRequest(), {shared_from_this(), choice.get()}});
  }
  return backend_->scheduler->SubmitAll(std::move(submissions));
}

bool Generation::CancelChoices() {
  bool any = false;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    any = backend_->scheduler->Cancel(choice->id()) || any;
  }
  return any;
}

// Only what this RPC has submitted: another's request may have the id that ours was refused for. True: it
// ends something, or will.
bool Generation::CancelInScheduler() {
  {
    base::MutexLock lock(&mutex_);
    const bool first = !std::exchange(cancel_wanted_, true);
    if (!submitted_ || closed_) {
      return first && !closed_;
    }
  }
  return CancelChoices();
}

void Generation::Cancel() {
  CancelInScheduler();
  {
    base::MutexLock lock(&mutex_);
    mail_.cancelled = true;
  }
  Wake();
}

bool Generation::Abort() { return CancelInScheduler(); }

void Generation::FailByEngine(const absl::Status& status) {
  CancelInScheduler();  // should it come back
  batching::RequestOutcome outcome;
  outcome.reason = batching::FinishReason::kError;
  outcome.status = status;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    choice->OnFinished(outcome);
  }
}

void Generation::WriteDone(bool ok) {
  {
    base::MutexLock lock(&mutex_);
    mail_.write_done = true;
    mail_.write_ok = ok;
  }
  Wake();
}

}  // namespace comoe::server
