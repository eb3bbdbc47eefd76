#include "server/stream_generation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "server/messages.h"
#include "server/status_conversion.h"

namespace comoe::server {

StreamGeneration::StreamGeneration(const v1::GenerateStreamRequest& request, StreamTransport& transport,
                                   absl::Time deadline, const GenerationServices& services)
    : Generation(Method::kGenerateStream, deadline, transport, services),
      request_(request),
      transport_(transport),
      backlog_(std::in_place, services.backlog) {}

absl::StatusOr<GenerationSpec> StreamGeneration::Parse(const RequestBounds& bounds) const {
  return ParseGenerateStreamRequest(request_, bounds);
}

void StreamGeneration::Advance() {
  if (write_in_flight()) {
    WatchReader();  // a failure waits for the write too: gRPC ends it soon when the call is cancelled
    return;
  }
  backlog_->Set(0, nullptr);
  if (const std::optional<absl::Status> failure = Failure(); failure.has_value()) {
    backlog_.reset();
    End(*failure);
    return;
  }
  if (started() && !started_sent_) {
    if (prompt_scored()) {
      WriteStarted();
    }
    return;
  }
  // What ended while it waited has nothing but its end.
  if (!started_sent_ || !WriteDelta()) {
    WriteFinished();
  }
}

void StreamGeneration::WatchReader() {
  if (ending_for_slow_reader()) {
    return;
  }
  const std::int64_t behind = num_waiting_tokens();
  backlog_->Set(behind, shared_from_this());
  if (behind > limits().max_stream_backlog_tokens) {
    EndForSlowReader("its reader is too far behind");
  } else if (write_age() > limits().stream_stall_timeout) {
    EndForSlowReader("its reader takes nothing");
  } else if (backlog_->must_end()) {
    EndForSlowReader("its reader is the furthest behind of too many tokens that wait");
  } else {
    return;
  }
  Abandon();
}

void StreamGeneration::Send() {
  set_write_in_flight();
  transport_.Write(message_);
}

void StreamGeneration::WriteStarted() {
  started_sent_ = true;
  message_.Clear();
  v1::GenerateStreamResponse::Started* event = message_.mutable_started();
  event->set_request_id(spec().request.id);
  event->set_model(model_name());
  event->set_prompt_tokens(ToUint32(static_cast<std::int64_t>(spec().request.prompt.size())));
  event->set_cached_prompt_tokens(ToUint32(choices().front()->cached_prompt_tokens()));
  event->set_seed(spec().request.sampling.seed);
  if (spec().request.prompt_logprobs >= 0) {
    ToMessage(spec().request.prompt, choices().front()->prompt_scores(), event->mutable_prompt_logprobs());
    if (const auto failure = TooLarge("output.prompt_logprobs", message_.ByteSizeLong());
        failure.has_value()) {
      Cancel();
      backlog_.reset();
      End(*failure);
      return;
    }
  }
  Send();
}

// Whether it has output, and enough of it or long enough. Sets a timer if it is only a matter of time.
bool StreamGeneration::IsDue(const Choice& choice) {
  if (!choice.has_output()) {
    return false;
  }
  const OutputSpec& output = spec().output;
  // What is over gathers no more.
  if (choice.complete() || choice.stopped() || output.min_chunk_tokens == 1 ||
      choice.num_waiting_tokens() >= output.min_chunk_tokens) {
    return true;
  }
  if (choice.num_waiting_tokens() == 0 || output.max_chunk_delay == absl::InfiniteDuration()) {
    return false;
  }
  const absl::Duration due = choice.waiting_since() + output.max_chunk_delay;
  const absl::Duration now = MonotonicNow();
  if (due <= now) {
    return true;
  }
  if (timer_ <= now || due < timer_) {
    timer_ = due;
    services().output.WakeAfter(shared_from_this(), due - now);
  }
  return false;
}

bool StreamGeneration::WriteDelta() {
  const std::size_t num_choices = choices().size();
  for (std::size_t i = 0; i < num_choices; ++i) {
    const std::size_t index = (next_choice_ + i) % num_choices;
    Choice& choice = *choices()[index];
    if (!IsDue(choice)) {
      continue;
    }
    message_.Clear();
    v1::GenerateStreamResponse::Delta* delta = message_.mutable_delta();
    if (!choice.Take(delta)) {
      continue;
    }
    delta->set_index(static_cast<std::uint32_t>(index));
    if (spec().output.include_usage_every_chunk) {
      ToMessage(usage(), delta->mutable_usage());
    }
    next_choice_ = (index + 1) % num_choices;
    Send();
    return true;
  }
  return false;
}

void StreamGeneration::WriteFinished() {
  finished_sent_.resize(choices().size());
  std::size_t index = 0;
  while (index < finished_sent_.size() && (finished_sent_[index] || !choices()[index]->complete())) {
    ++index;
  }
  if (index == finished_sent_.size()) {
    return;
  }
  const Choice& choice = *choices()[index];
  finished_sent_[index] = true;
  message_.Clear();
  v1::GenerateStreamResponse::Finished* event = message_.mutable_finished();
  event->set_index(static_cast<std::uint32_t>(index));
  choice.FillEnd(event);
  ToMessage(usage(), event->mutable_usage());
  if (spec().output.include_timing) {
    ToMessage(choice.outcome().timing, event->mutable_timing());
  }
  event->set_message(std::string(StatusOfOutcome(choice.outcome()).message()));
  if (std::find(finished_sent_.begin(), finished_sent_.end(), false) != finished_sent_.end()) {
    Send();
    return;
  }
  const absl::Status status = StatusOfChoices();
  backlog_.reset();
  RecordEnd(status);
  transport_.WriteAndFinish(message_, status);
}

}  // namespace comoe::server
