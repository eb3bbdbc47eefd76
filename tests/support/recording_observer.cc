#include "tests/support/recording_observer.h"

#include "absl/strings/str_cat.h"

namespace comoe::testing {

void RecordingObserver::Require(bool condition, const char* what) {
  if (!condition) {
    absl::StrAppend(&violation_, what, "; ");
  }
}

void RecordingObserver::OnStarted(std::int64_t /*cached_prompt_tokens*/) {
  base::MutexLock lock(&mutex_);
  Require(!started_, "started twice");
  Require(num_finished_ == 0, "started after the end");
  started_ = true;
  changed_.SignalAll();
}

void RecordingObserver::OnPromptScores(absl::Span<const api::LogprobRow> scores) {
  base::MutexLock lock(&mutex_);
  Require(started_, "prompt scores before the start");
  Require(num_finished_ == 0, "prompt scores after the end");
  Require(tokens_.empty(), "prompt scores after a token");
  Require(!scores.empty(), "no prompt scores");
  prompt_scores_.insert(prompt_scores_.end(), scores.begin(), scores.end());
  changed_.SignalAll();
}

void RecordingObserver::OnTokens(absl::Span<const batching::GeneratedToken> tokens) {
  {
    base::MutexLock lock(&mutex_);
    Require(started_, "tokens before the start");
    Require(num_finished_ == 0, "tokens after the end");
    Require(!tokens.empty(), "no tokens");
    for (const batching::GeneratedToken& token : tokens) {
      tokens_.push_back(token.id);
      logprobs_.push_back(token.logprobs);
    }
    changed_.SignalAll();
  }
  if (on_tokens) {
    on_tokens();
  }
}

void RecordingObserver::OnFinished(const batching::RequestOutcome& outcome) {
  base::MutexLock lock(&mutex_);
  ++num_finished_;
  Require(num_finished_ == 1, "finished twice");
  Require(outcome.usage.completion_tokens == static_cast<std::int64_t>(tokens_.size()),
          "usage is not what was delivered");
  outcome_ = outcome;
  changed_.SignalAll();
}

void RecordingObserver::WaitStarted() {
  base::MutexLock lock(&mutex_);
  while (!started_) {
    changed_.Wait(&mutex_);
  }
}

void RecordingObserver::WaitTokens(std::size_t count) {
  base::MutexLock lock(&mutex_);
  while (tokens_.size() < count && num_finished_ == 0) {
    changed_.Wait(&mutex_);
  }
}

batching::RequestOutcome RecordingObserver::WaitFinished() {
  base::MutexLock lock(&mutex_);
  while (num_finished_ == 0) {
    changed_.Wait(&mutex_);
  }
  return outcome_;
}

bool RecordingObserver::started() const {
  base::MutexLock lock(&mutex_);
  return started_;
}
bool RecordingObserver::finished() const { return num_finished() > 0; }
int RecordingObserver::num_finished() const {
  base::MutexLock lock(&mutex_);
  return num_finished_;
}
std::vector<base::TokenId> RecordingObserver::tokens() const {
  base::MutexLock lock(&mutex_);
  return tokens_;
}
std::vector<api::LogprobRow> RecordingObserver::logprobs() const {
  base::MutexLock lock(&mutex_);
  return logprobs_;
}
std::vector<api::LogprobRow> RecordingObserver::prompt_scores() const {
  base::MutexLock lock(&mutex_);
  return prompt_scores_;
}
std::string RecordingObserver::violation() const {
  base::MutexLock lock(&mutex_);
  return violation_;
}

}  // namespace comoe::testing
