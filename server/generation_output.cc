// The output thread's part of Generation.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "engine/base/log.h"
#include "server/error_details.h"
#include "server/generation.h"
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
    case FinishReason::kStopString:
    case FinishReason::kStopToken:
    case FinishReason::kMaxTokens:
    case FinishReason::kContextLength:
    case FinishReason::kTimeLimit:
      break;
  }
  return EarlyEnd::kNone;
}

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

}  // namespace

void Generation::RunOutput() {
  if (ended_) {
    WatchEnd();
    return;
  }
  ReadMail();
  // Until then a worker reads the request, which the end of the RPC would free.
  if (!prepared_) {
    return;
  }
  if (refusal_.ok()) {  // else some may have been submitted, and what they hear is nobody's
    ReadChoices();
  }
  Advance();
}

void Generation::ReadMail() {
  base::MutexLock lock(&mutex_);
  if (mail_.prepared && !prepared_) {
    prepared_ = true;
    refusal_ = mail_.refusal;
    rejection_ = mail_.rejection;
  }
  cancelled_ = cancelled_ || mail_.cancelled;
  if (std::exchange(mail_.write_done, false)) {
    write_in_flight_ = false;
    broken_ = broken_ || !mail_.write_ok;
  }
}

void Generation::ReadChoices() {
  std::vector<absl::Duration> gaps;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    const bool had_stopped = choice->stopped();
    choice->Read(&gaps);
    if (choice->stopped() && !had_stopped && !choice->complete()) {
      backend_->scheduler->Cancel(choice->id(), batching::CancelReason::kStopMatched);
    }
  }
  ObserveTokens(gaps);
  EndTogether();
}

void Generation::ObserveTokens(const std::vector<absl::Duration>& gaps) {
  for (const absl::Duration gap : gaps) {
    services_.metrics.ObserveNextToken(gap);
  }
  if (first_token_observed_) {
    return;
  }
  if (const absl::Duration first = FirstToken(); first != absl::ZeroDuration()) {
    first_token_observed_ = true;
    services_.metrics.ObserveFirstToken(first - arrival_);
  }
}

// A choice that cannot go on takes the others with it: nobody asked for fewer.
void Generation::EndTogether() {
  for (const std::unique_ptr<Choice>& choice : choices_) {
    if (culprit_ == nullptr && choice->complete() && !StatusOfOutcome(choice->outcome()).ok()) {
      culprit_ = choice.get();
      CancelInScheduler();
    }
  }
  for (const std::unique_ptr<Choice>& choice : choices_) {
    if (culprit_ != nullptr && choice.get() != culprit_ && choice->complete() &&
        choice->outcome().reason == FinishReason::kAborted) {
      choice->BlameOther(culprit_->outcome());
    }
  }
}

bool Generation::started() const {
  return std::any_of(choices_.begin(), choices_.end(), [](const auto& choice) { return choice->started(); });
}

bool Generation::prompt_scored() const {
  const Choice& first = *choices_.front();
  return spec_.request.prompt_logprobs < 0 || first.complete() ||
         first.prompt_scores().size() + 1 >= spec_.request.prompt.size();
}

bool Generation::all_complete() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const auto& choice) { return choice->complete(); });
}

std::int64_t Generation::num_waiting_tokens() const {
  std::int64_t tokens = 0;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    tokens += choice->num_waiting_tokens();
  }
  return tokens;
}

void Generation::set_write_in_flight() {
  write_in_flight_ = true;
  write_started_ = MonotonicNow();
}

absl::Duration Generation::write_age() const { return MonotonicNow() - write_started_; }

absl::Duration Generation::FirstToken() const {
  absl::Duration first;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    const absl::Duration time = choice->emission_times().first;
    if (time != absl::ZeroDuration() && (first == absl::ZeroDuration() || time < first)) {
      first = time;
    }
  }
  return first;
}

batching::Usage Generation::usage() const {
  batching::Usage usage;
  usage.prompt_tokens = static_cast<std::int64_t>(spec_.request.prompt.size());
  for (const std::unique_ptr<Choice>& choice : choices_) {
    usage.completion_tokens += choice->num_taken_tokens();
  }
  if (!choices_.empty()) {
    usage.cached_prompt_tokens = choices_.front()->cached_prompt_tokens();
  }
  return usage;
}

batching::RequestTiming Generation::timing() const {
  batching::RequestTiming timing = choices_.front()->outcome().timing;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    const batching::RequestTiming& other = choice->outcome().timing;
    const absl::Duration decode = std::max(timing.decode, other.decode);
    if (other.time_to_first_token < timing.time_to_first_token) {
      timing = other;
    }
    timing.decode = decode;
  }
  return timing;
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
    return WithReason(absl::AbortedError("the stream was not read fast enough"), kReasonSlowReader);
  }
  if (cancelled_ || broken_) {
    if (DeadlinePassed()) {
      return absl::DeadlineExceededError("the deadline passed before the completion was done");
    }
    return absl::CancelledError("the client left");
  }
  return std::nullopt;
}

absl::Status Generation::StatusOfChoices() const {
  return culprit_ == nullptr ? absl::OkStatus() : StatusOfOutcome(culprit_->outcome());
}

std::optional<absl::Status> Generation::TooLarge(absl::string_view what, std::size_t bytes) const {
  if (bytes <= static_cast<std::size_t>(limits().max_answer_bytes)) {
    return std::nullopt;
  }
  return AnswerTooLarge(what, bytes, limits().max_answer_bytes);
}

void Generation::EndForSlowReader(absl::string_view why) {
  slow_reader_ = true;
  base::Logf(base::LogLevel::kWarning, "server", "request %s: %s, %d tokens behind; it is ended",
             spec_.request.id, why, num_waiting_tokens());
  CancelInScheduler();
}

void Generation::Abandon() {
  if (gate_.Enter()) {
    transport_.Abandon();
    gate_.Leave();
  }
}

// The last message and the status wait for the reader, too: one that never reads would hold the RPC, and a
// drain, for ever.
void Generation::WatchEnd() {
  if (!abandoned_ && !gate_.closed() && MonotonicNow() - end_time_ > limits().stream_stall_timeout) {
    abandoned_ = true;
    base::Logf(base::LogLevel::kWarning, "server", "request %s: its end was not read; it is cut off",
               spec_.request.id);
    Abandon();
  }
}

void Generation::End(const absl::Status& status) {
  RecordEnd(status);
  transport_.Finish(status);
}

void Generation::RecordEnd(const absl::Status& status) {
  // Whatever ended the RPC (a failed write, say, of which gRPC tells before the cancel), nobody wants more
  // tokens.
  if (refusal_.ok() && !all_complete()) {
    CancelInScheduler();
  }
  {
    base::MutexLock lock(&mutex_);
    closed_ = true;
  }
  ended_ = true;
  end_time_ = MonotonicNow();
  std::int64_t discarded = 0;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    choice->Close();
    discarded += choice->num_discarded();
  }
  if (discarded > 0) {
    services_.metrics.AddTokensAfterStop(discarded);
  }
  if (registered_) {
    services_.registry.Remove(spec_.request.id);
  }
  const Terminal terminal = MakeTerminal(status);
  services_.metrics.RecordTerminal(terminal);
  LogEnd(terminal);
}

Terminal Generation::MakeTerminal(const absl::Status& status) const {
  Terminal terminal;
  terminal.method = method_;
  terminal.code = status.code();
  terminal.elapsed = MonotonicNow() - arrival_;
  terminal.prompt_tokens = static_cast<std::int64_t>(spec_.request.prompt.size());
  terminal.max_tokens = spec_.request.prefill_only ? 0 : spec_.request.stop.max_tokens;
  std::int64_t num_gaps = 0;
  absl::Duration decode;
  for (const std::unique_ptr<Choice>& choice : choices_) {
    terminal.completion_tokens += choice->num_received_tokens() - choice->num_discarded();
    num_gaps += std::max<std::int64_t>(0, choice->num_received_tokens() - 1);
    decode += choice->emission_times().last - choice->emission_times().first;
  }
  if (num_gaps > 0) {
    terminal.per_output_token = decode / num_gaps;
  }
  if (!refusal_.ok()) {
    terminal.rejection = rejection_;
  } else if (slow_reader_) {
    terminal.finish_reason = FinishReason::kAborted;
    terminal.early_end = EarlyEnd::kSlowConsumer;
  } else if (cancelled_ || broken_) {
    const bool late = status.code() == absl::StatusCode::kDeadlineExceeded;
    terminal.finish_reason = late ? FinishReason::kDeadline : FinishReason::kAborted;
    terminal.early_end = late ? EarlyEnd::kDeadline : EarlyEnd::kClientCancel;
  } else if (absl::string_view(ReasonOf(status)) == kReasonAnswerTooLarge) {
    terminal.finish_reason = FinishReason::kError;
  } else {
    // Of several choices the one that could not go on; else the first stands for all.
    const Choice& choice = culprit_ != nullptr ? *culprit_ : *choices_.front();
    terminal.finish_reason = choice.outcome().reason;
    terminal.early_end = EarlyEndOf(choice.outcome().reason);
  }
  return terminal;
}

// One line a request, with nothing of its text.
void Generation::LogEnd(const Terminal& terminal) const {
  absl::Duration queue;
  absl::Duration first_token;
  if (started()) {
    absl::Duration start = absl::InfiniteDuration();
    for (const std::unique_ptr<Choice>& choice : choices_) {
      start = choice->started() ? std::min(start, choice->start_time()) : start;
    }
    queue = start - arrival_;
  }
  if (const absl::Duration first = FirstToken(); first != absl::ZeroDuration()) {
    first_token = first - arrival_;
  }
  base::Logf(base::LogLevel::kInfo, "server",
             "request %s: %s %s finish=%s prompt_tokens=%d completion_tokens=%d queue_ms=%.1f ttft_ms=%.1f "
             "total_ms=%.1f peer=%s",
             spec_.request.id.empty() ? "-" : spec_.request.id, MethodName(terminal.method),
             CodeName(terminal.code),
             terminal.finish_reason ? batching::FinishReasonName(*terminal.finish_reason) : "none",
             terminal.prompt_tokens, terminal.completion_tokens, Milliseconds(queue),
             Milliseconds(first_token), Milliseconds(terminal.elapsed), transport_.peer());
}

}  // namespace comoe::server
