// One completion of a generation, as the scheduler reports it and as it goes out. A generation has as many as
// the request asks for, each a request of its own to the scheduler.
//
// The scheduler's thread only leaves notes. The generation's output thread reads them, which makes tokens
// into output at once, whether that can be sent yet or not: a stop string ends the request however slow its
// reader is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comoe/v1/inference.pb.h"
#include "engine/base/sync.h"
#include "scheduler/batching/request.h"
#include "server/text_stream.h"
#include "server/validation.h"

namespace comoe::server {

// What the choices of a generation have in common. All of it outlives them.
struct ChoiceContext {
  const GenerationSpec& spec;
  const tokenizer::Tokenizer* tokenizer = nullptr;  // null: there is no text
  std::shared_ptr<const StopStrings> stop_strings;  // null: none
  std::vector<base::TokenId> hidden_tokens;         // without text
  std::function<void()> wake;                       // something was left to read; called under no lock
};

// When the engine gave tokens; by the monotonic clock.
struct EmissionTimes {
  absl::Duration first;  // zero: there was none
  absl::Duration last;
};

class Choice final : public batching::RequestObserver {
 public:
  Choice(std::int64_t index, const ChoiceContext& context);

  // The scheduler's.
  void OnStarted(std::int64_t cached_prompt_tokens) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPromptScores(absl::Span<const api::LogprobRow> scores) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnTokens(absl::Span<const batching::GeneratedToken> tokens) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(const batching::RequestOutcome& outcome) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant. "ID", "ID#1", "ID#2": no client can use a '#'.
  const std::string& id() const { return id_; }
  std::int64_t index() const { return index_; }
  // What the scheduler gets: the spec's request with this choice's id, seed and share of the work.
  batching::Request MakeRequest() const;

  // Everything below is the output thread's.

  // Takes what the scheduler has left. Gaps between emissions are appended to `gaps`.
  void Read(std::vector<absl::Duration>* gaps) ABSL_LOCKS_EXCLUDED(mutex_);
  // Throws away whatever comes from now on.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  bool started() const { return started_; }
  std::int64_t cached_prompt_tokens() const { return cached_prompt_tokens_; }
  // By the monotonic clock; zero: it has not.
  absl::Duration start_time() const { return start_time_; }
  // Of the prompt's second token and the following ones.
  const std::vector<api::LogprobRow>& prompt_scores() const { return prompt_scores_; }
  // A stop string was found: the scheduler need not go on.
  bool stopped() const { return text_.has_value() && text_->matched() != nullptr; }
  // The scheduler is done with it.
  bool complete() const { return outcome_.has_value(); }
  // How it ended for the client: a stop string goes before what the scheduler says. Precondition: complete().
  const batching::RequestOutcome& outcome() const { return *outcome_; }
  // It was cancelled because another choice ended like this.
  void BlameOther(const batching::RequestOutcome& other);
  // Tokens behind a stop string.
  std::int64_t num_discarded() const { return num_discarded_; }

  // Output that has not been taken yet.
  bool has_output() const { return num_waiting_ > 0 || !ready_.text().empty(); }
  std::int64_t num_waiting_tokens() const { return num_waiting_; }
  // Of a message that holds it, but for the ids and the lengths of fields: no more than it has.
  std::size_t num_waiting_bytes() const { return waiting_bytes_ + ready_.text().size(); }
  // When the first of them came.
  absl::Duration waiting_since() const { return waiting_since_; }
  // Moves it into `message`. False: it is nothing that a message shows (tokens whose text is held back).
  bool Take(v1::GenerateStreamResponse::Delta* message);
  void Take(v1::GenerateResponse::Choice* message);
  // Tokens that have been taken.
  std::int64_t num_taken_tokens() const { return num_taken_; }

  // The finish reason and what matched, into a Finished or a GenerateResponse::Choice. Precondition:
  // complete().
  template <typename Message>
  void FillEnd(Message* message) const;

  std::int64_t num_received_tokens() const { return num_received_; }
  const EmissionTimes& emission_times() const { return times_; }

 private:
  struct Mail {
    absl::Duration start_time;
    std::int64_t cached_prompt_tokens = 0;
    std::vector<api::LogprobRow> prompt_scores;
    std::vector<batching::GeneratedToken> tokens;
    std::vector<absl::Duration> emissions;
    std::optional<batching::RequestOutcome> outcome;
  };

  void Absorb(const batching::GeneratedToken& token);
  void Complete(batching::RequestOutcome outcome);
  template <typename Message>
  void MoveTo(Message* message);

  const std::int64_t index_;
  const std::string id_;
  const ChoiceContext& context_;

  base::Mutex mutex_;
  Mail mail_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;

  // Confined to the output thread.
  bool started_ = false;
  std::int64_t cached_prompt_tokens_ = 0;
  absl::Duration start_time_;
  std::vector<api::LogprobRow> prompt_scores_;
  std::optional<TextStream> text_;
  std::string hidden_text_;                  // where text goes that is made for stop strings only
  v1::GenerateStreamResponse::Delta ready_;  // output that waits
  std::int64_t num_waiting_ = 0;
  std::size_t waiting_bytes_ = 0;  // of pieces and log-probabilities
  std::int64_t num_taken_ = 0;
  std::int64_t num_received_ = 0;
  std::int64_t num_discarded_ = 0;
  absl::Duration waiting_since_;
  EmissionTimes times_;
  std::optional<batching::RequestOutcome> outcome_;
};

}  // namespace comoe::server
