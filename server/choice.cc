#include "server/choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/messages.h"

namespace comoe::server {

using batching::FinishReason;

Choice::Choice(std::int64_t index, const ChoiceContext& context)
    : index_(index),
      id_(index == 0 ? context.spec.request.id : absl::StrCat(context.spec.request.id, "#", index)),
      context_(context) {
  const OutputSpec& output = context.spec.output;
  if (context.tokenizer == nullptr || (!output.return_text && context.stop_strings == nullptr)) {
    return;
  }
  TextStreamOptions options;
  options.skip_special_tokens = output.skip_special_tokens;
  options.hidden_tokens = context.hidden_tokens;
  options.stop = context.stop_strings;
  options.include_stop = output.include_stop_in_output;
  options.min_tokens = context.spec.request.stop.min_tokens;
  text_.emplace(*context.tokenizer, std::move(options));
  if (output.echo_prompt) {
    text_->PushPrompt(context.spec.request.prompt, ready_.mutable_text());
  }
}

batching::Request Choice::MakeRequest() const {
  batching::Request request = context_.spec.request;
  request.id = id_;
  request.sampling.seed += static_cast<std::uint64_t>(index_);
  if (index_ > 0) {
    request.prompt_logprobs = -1;  // once is enough
  }
  return request;
}

void Choice::OnStarted(std::int64_t cached_prompt_tokens) {
  {
    base::MutexLock lock(&mutex_);
    mail_.start_time = MonotonicNow();
    mail_.cached_prompt_tokens = cached_prompt_tokens;
  }
  context_.wake();
}

void Choice::OnPromptScores(absl::Span<const api::LogprobRow> scores) {
  {
    base::MutexLock lock(&mutex_);
    if (closed_) {
      return;
    }
    mail_.prompt_scores.insert(mail_.prompt_scores.end(), scores.begin(), scores.end());
  }
  context_.wake();
}

void Choice::OnTokens(absl::Span<const batching::GeneratedToken> tokens) {
  const absl::Duration now = MonotonicNow();
  {
    base::MutexLock lock(&mutex_);
    if (closed_) {
      return;
    }
    mail_.tokens.insert(mail_.tokens.end(), tokens.begin(), tokens.end());
    mail_.emissions.push_back(now);
  }
  context_.wake();
}

void Choice::OnFinished(const batching::RequestOutcome& outcome) {
  {
    base::MutexLock lock(&mutex_);
    if (closed_ || finished_) {
      return;  // it was given up before the scheduler came back
    }
    finished_ = true;
    mail_.outcome = outcome;
  }
  context_.wake();
}

void Choice::Read(std::vector<absl::Duration>* gaps) {
  Mail mail;
  {
    base::MutexLock lock(&mutex_);
    mail = std::exchange(mail_, {});
  }
  if (mail.start_time != absl::ZeroDuration()) {
    started_ = true;
    start_time_ = mail.start_time;
    cached_prompt_tokens_ = mail.cached_prompt_tokens;
  }
  prompt_scores_.insert(prompt_scores_.end(), std::make_move_iterator(mail.prompt_scores.begin()),
                        std::make_move_iterator(mail.prompt_scores.end()));
  for (const absl::Duration time : mail.emissions) {
    if (times_.first == absl::ZeroDuration()) {
      times_.first = time;
    } else {
      gaps->push_back(time - times_.last);
    }
    times_.last = time;
  }
  if (num_waiting_ == 0 && !mail.emissions.empty()) {
    waiting_since_ = mail.emissions.front();
  }
  num_received_ += static_cast<std::int64_t>(mail.tokens.size());
  for (const batching::GeneratedToken& token : mail.tokens) {
    Absorb(token);
  }
  if (mail.outcome.has_value()) {
    Complete(*std::move(mail.outcome));
  }
}

void Choice::Close() {
  base::MutexLock lock(&mutex_);
  closed_ = true;
  mail_ = {};
}

void Choice::Absorb(const batching::GeneratedToken& token) {
  if (stopped()) {
    ++num_discarded_;
    return;
  }
  const OutputSpec& output = context_.spec.output;
  ++num_waiting_;
  if (output.return_token_ids) {
    ready_.add_token_ids(ToUint32(token.id));
  }
  if (output.return_token_pieces) {
    ready_.add_token_pieces(context_.tokenizer->TokenBytes(token.id));
    waiting_bytes_ += ready_.token_pieces(ready_.token_pieces_size() - 1).size();
  }
  if (output.return_logprobs) {
    v1::LogprobEntry* entry = ready_.add_logprobs();
    ToMessage(token.logprobs, entry);
    waiting_bytes_ += entry->ByteSizeLong();
  }
  if (text_.has_value()) {
    text_->Push(token.id, output.return_text ? ready_.mutable_text() : &hidden_text_);
    hidden_text_.clear();
  }
}

void Choice::Complete(batching::RequestOutcome outcome) {
  if (text_.has_value() && !stopped()) {
    text_->Flush(context_.spec.output.return_text ? ready_.mutable_text() : &hidden_text_);
  }
  if (stopped()) {
    outcome.reason = FinishReason::kStopString;
    outcome.matched_token = -1;
    outcome.status = absl::OkStatus();
    outcome.usage.completion_tokens = num_taken_ + num_waiting_;
  }
  outcome_ = std::move(outcome);
}

void Choice::BlameOther(const batching::RequestOutcome& other) {
  outcome_->reason = other.reason;
  outcome_->status = other.status;
}

template <typename Message>
void Choice::MoveTo(Message* message) {
  message->mutable_text()->swap(*ready_.mutable_text());
  message->mutable_token_ids()->Swap(ready_.mutable_token_ids());
  message->mutable_token_pieces()->Swap(ready_.mutable_token_pieces());
  message->mutable_logprobs()->Swap(ready_.mutable_logprobs());
  ready_.Clear();
  waiting_bytes_ = 0;
  num_taken_ += std::exchange(num_waiting_, 0);
}

bool Choice::Take(v1::GenerateStreamResponse::Delta* message) {
  MoveTo(message);
  return !message->text().empty() || !message->token_ids().empty() || !message->token_pieces().empty() ||
         !message->logprobs().empty();
}

void Choice::Take(v1::GenerateResponse::Choice* message) { MoveTo(message); }

template <typename Message>
void Choice::FillEnd(Message* message) const {
  message->set_finish_reason(ToMessage(outcome_->reason));
  if (outcome_->reason == FinishReason::kStopString && stopped()) {
    message->set_stop_string(*text_->matched());
  } else if (outcome_->matched_token >= 0) {
    message->set_stop_token_id(ToUint32(outcome_->matched_token));
  }
}
template void Choice::FillEnd(v1::GenerateStreamResponse::Finished* message) const;
template void Choice::FillEnd(v1::GenerateResponse::Choice* message) const;

}  // namespace comoe::server
