#include "scheduler/batching/scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "scheduler/batching/batch_composer.h"
#include "scheduler/batching/kv_block_manager.h"
#include "scheduler/batching/mailbox.h"
#include "scheduler/batching/scheduler_metrics.h"
#include "scheduler/batching/sequence_table.h"
#include "scheduler/batching/stop_conditions.h"

namespace comoe::batching {
namespace {

using SequencePtr = std::unique_ptr<Sequence>;

absl::Duration Elapsed(absl::Time from, absl::Time to) { return std::max(to - from, absl::ZeroDuration()); }

absl::Status ShuttingDown() { return absl::UnavailableError("the service is shutting down"); }

// The rows of a span that belong to its sequence's prompt.
std::int64_t NumPromptRows(const api::PlanSpan& span, const Sequence& sequence) {
  const auto rows = static_cast<std::int64_t>(span.tokens.size());
  return std::clamp<std::int64_t>(sequence.num_prompt - span.start_position, 0, rows);
}

// The loop: hear, admit, compose, step, deliver, retire. All of it runs on the engine thread; the interface's
// methods only post to the mailbox.
//
// Invariants, asserted in debug builds: (1) a block is free once or held by one running sequence; (2) a
// step's rows and spans keep to their limits; (3) a running sequence has at least one row to run, and no rows
// computed beyond its tokens; (4) nobody waits while there is room, and a step computes something; (5) what
// can never fit does not run; (6) blocks change hands between steps only; (7) a request ends once, and gets
// no token after its end.
class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(api::Engine& engine, const SchedulerOptions& options, base::MetricsSink& metrics);
  ~SchedulerImpl() override;

  absl::Status Submit(Request request, std::shared_ptr<RequestObserver> observer) override;
  bool Cancel(absl::string_view request_id) override { return mailbox_.Cancel(request_id); }
  LoadSnapshot load() const override { return mailbox_.load(); }
  void BeginDrain() override { mailbox_.BeginDrain(); }
  bool Stop(absl::Time until) override { return mailbox_.Stop(until); }

 private:
  absl::Status CheckRequest(const Request& request) const;

  // Everything below is the engine thread's.
  void Run();
  void HandleMail(Mail mail);
  void Admit();
  void RunStep();
  api::StepPlan Compose();
  absl::Status CheckResult(const api::StepPlan& plan, const api::StepResult& result) const;
  void RecordStep(const api::StepPlan& plan, absl::Duration elapsed);
  void Account(const api::StepPlan& plan);
  void Deliver(const api::StepResult& result);
  void PublishLoad();
  bool InvariantsHold(const api::StepPlan& plan) const;

  // Ends a request that is in neither queue nor table any more: the only place where that happens.
  void Finish(SequencePtr sequence, FinishReason reason, const absl::Status& status,
              base::TokenId matched_token = -1);
  void FinishRunning(base::SequenceId id, FinishReason reason, const absl::Status& status);
  void RecordEnd(const Sequence& sequence, const RequestOutcome& outcome);

  // Constant after construction.
  api::Engine& engine_;
  const std::function<absl::Time()> now_;
  const std::vector<base::TokenId> eos_token_ids_;
  const std::int32_t vocab_size_;
  const std::int64_t max_rows_;
  const std::int64_t max_sequences_;

  // The engine thread's.
  SequenceTable sequences_;
  KvBlockManager blocks_;
  std::uint64_t next_step_ = 0;
  bool step_under_way_ = false;

  const std::int64_t max_positions_;  // constant; computed from blocks_

  // Synchronised by themselves.
  SchedulerMetrics metrics_;
  Mailbox mailbox_;

  std::thread thread_;  // last: it finds everything above constructed
};

SchedulerImpl::SchedulerImpl(api::Engine& engine, const SchedulerOptions& options, base::MetricsSink& metrics)
    : engine_(engine),
      now_(options.now ? options.now : [] { return absl::Now(); }),
      eos_token_ids_(engine.model_info().eos_token_ids),
      vocab_size_(engine.model_info().vocab_size),
      max_rows_(std::max<std::int64_t>(1, std::min(options.max_batch_tokens, engine.capacity().max_rows))),
      max_sequences_(
          std::max<std::int64_t>(1, std::min(options.max_sequences, engine.capacity().max_sequences))),
      blocks_(engine.model_info().cache_groups, engine.capacity().num_blocks),
      max_positions_(std::min(engine.capacity().max_positions, blocks_.LongestSequence())),
      metrics_(metrics),
      mailbox_(std::max<std::int64_t>(1, options.max_waiting_requests), now_, metrics_) {
  PublishLoad();
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "engine");
}

SchedulerImpl::~SchedulerImpl() {
  Stop(absl::InfinitePast());
  thread_.join();
}

absl::Status SchedulerImpl::CheckRequest(const Request& request) const {
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  if (num_prompt == 0) {
    return absl::InvalidArgumentError("the prompt is empty: it has at least one token");
  }
  if (num_prompt + 1 > max_positions_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", num_prompt, " tokens: with one to generate, ", num_prompt + 1,
                     " positions, and a sequence has at most ", max_positions_));
  }
  for (const base::TokenId token : request.prompt) {
    if (token < 0 || token >= vocab_size_) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token, " of the prompt is not in the vocabulary of ", vocab_size_));
    }
  }
  if (request.stop.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.stop.max_tokens, ": it is at least 1"));
  }
  return api::ValidateSamplingParams(request.sampling, vocab_size_);
}

absl::Status SchedulerImpl::Submit(Request request, std::shared_ptr<RequestObserver> observer) {
  COMOE_CHECK(observer != nullptr, "a request has an observer");
  COMOE_RETURN_IF_ERROR(CheckRequest(request));
  auto sequence = std::make_unique<Sequence>();
  sequence->num_prompt = static_cast<std::int64_t>(request.prompt.size());
  sequence->limit = LimitTokens(request.stop.max_tokens, sequence->num_prompt, max_positions_);
  sequence->tokens = std::move(request.prompt);
  sequence->request = std::move(request);
  sequence->observer = std::move(observer);
  sequence->submitted = now_();
  return mailbox_.Post(std::move(sequence));
}

void SchedulerImpl::Run() {
  bool stop = false;
  while (!stop) {
    Mail mail = mailbox_.Wait(/*busy=*/!sequences_.empty());
    stop = mail.stop;
    HandleMail(std::move(mail));
    Admit();
    if (!stop && !sequences_.empty()) {
      RunStep();
    }
  }
  for (const Sequence* sequence : sequences_.InOrder()) {
    FinishRunning(sequence->id, FinishReason::kDraining, ShuttingDown());
  }
  mailbox_.Exit();
}

void SchedulerImpl::HandleMail(Mail mail) {
  for (SequencePtr& sequence : mail.aborted) {
    Finish(std::move(sequence), FinishReason::kAborted, absl::OkStatus());
  }
  for (const base::SequenceId id : mail.cancelled) {
    FinishRunning(id, FinishReason::kAborted, absl::OkStatus());
  }
  const absl::Status late = absl::DeadlineExceededError("the request's deadline has passed");
  for (SequencePtr& sequence : mail.expired) {
    Finish(std::move(sequence), FinishReason::kDeadline, late);
  }
  const absl::Time now = now_();
  for (const Sequence* sequence : sequences_.InOrder()) {
    if (sequence->request.deadline <= now) {
      FinishRunning(sequence->id, FinishReason::kDeadline, late);
    }
  }
  for (SequencePtr& sequence : mail.drained) {
    Finish(std::move(sequence), FinishReason::kDraining, ShuttingDown());
  }
}

void SchedulerImpl::Admit() {
  while (sequences_.size() < max_sequences_) {
    SequencePtr sequence = mailbox_.PopWaiting();
    if (sequence == nullptr) {
      return;
    }
    COMOE_DCHECK(sequence->num_prompt + 1 <= max_positions_, "what can never fit is refused by Submit");
    sequence->started = now_();
    sequence->MoveTo(SequenceState::kPrefilling);
    const std::shared_ptr<RequestObserver> observer = sequence->observer;
    sequences_.Add(std::move(sequence));
    PublishLoad();
    observer->OnStarted();
  }
}

api::StepPlan SchedulerImpl::Compose() {
  ComposerSnapshot snapshot;
  snapshot.step = base::StepId{next_step_++};
  snapshot.max_rows = max_rows_;
  snapshot.max_sequences = max_sequences_;
  for (const Sequence* sequence : sequences_.InOrder()) {
    RunnableSequence runnable;
    runnable.id = sequence->id;
    runnable.tokens = sequence->tokens;
    runnable.num_computed = sequence->num_computed;
    runnable.reachable_end = blocks_.ReachableEnd(sequence->blocks, sequence->num_computed,
                                                  static_cast<std::int64_t>(sequence->tokens.size()));
    runnable.sampling = &sequence->request.sampling;
    snapshot.sequences.push_back(runnable);
  }
  api::StepPlan plan = ComposeStep(snapshot);
  std::vector<api::PlanSpan> spans;
  for (api::PlanSpan& span : plan.spans) {
    Sequence& sequence = *sequences_.Find(span.sequence);
    const auto rows = static_cast<std::int64_t>(span.tokens.size());
    // Fails where a span before it took the blocks that the snapshot showed as free; it goes on later.
    if (blocks_.Extend(sequence.blocks, span.start_position, span.start_position + rows).ok()) {
      span.groups = sequence.blocks;
      spans.push_back(std::move(span));
    }
  }
  plan.spans = std::move(spans);
  return plan;
}

void SchedulerImpl::RunStep() {
  const api::StepPlan plan = Compose();
  PublishLoad();
  if (plan.spans.empty()) {
    // Nobody can grow: whoever came last makes room for the others. One sequence alone always can.
    FinishRunning(sequences_.InOrder().back()->id, FinishReason::kError,
                  absl::ResourceExhaustedError("KV memory is used up by the requests that run"));
    return;
  }
  COMOE_DCHECK(InvariantsHold(plan), "a step keeps to the limits, and blocks and rows add up");
  const absl::Time begin = now_();
  step_under_way_ = true;
  const absl::StatusOr<api::StepResult> result = engine_.Step(plan);
  step_under_way_ = false;
  RecordStep(plan, Elapsed(begin, now_()));
  const absl::Status status = result.ok() ? CheckResult(plan, *result) : result.status();
  if (!status.ok()) {
    for (const api::PlanSpan& span : plan.spans) {
      FinishRunning(span.sequence, FinishReason::kError, status);
    }
    return;
  }
  Account(plan);
  // Who cancelled or ran out of time during the step gets no token of it.
  HandleMail(mailbox_.Collect());
  Deliver(*result);
}

absl::Status SchedulerImpl::CheckResult(const api::StepPlan& plan, const api::StepResult& result) const {
  if (result.spans.size() != plan.spans.size()) {
    return absl::InternalError(
        absl::StrCat("the engine answered ", result.spans.size(), " spans of ", plan.spans.size()));
  }
  for (std::size_t i = 0; i < plan.spans.size(); ++i) {
    const api::SpanResult& span = result.spans[i];
    if (span.sequence != plan.spans[i].sequence ||
        span.token.has_value() != plan.spans[i].sample.has_value()) {
      return absl::InternalError(
          absl::StrCat("the engine's answer for span ", i, " is not to what was asked"));
    }
    if (span.token.has_value() && (*span.token < 0 || *span.token >= vocab_size_)) {
      return absl::InternalError(absl::StrCat("the engine sampled token ", *span.token, " of ", vocab_size_));
    }
  }
  return absl::OkStatus();
}

void SchedulerImpl::RecordStep(const api::StepPlan& plan, absl::Duration elapsed) {
  if (std::none_of(plan.spans.begin(), plan.spans.end(), [this](const api::PlanSpan& span) {
        return sequences_.Find(span.sequence)->request.counted;
      })) {
    return;
  }
  const bool prefill = std::any_of(plan.spans.begin(), plan.spans.end(), [this](const api::PlanSpan& span) {
    return NumPromptRows(span, *sequences_.Find(span.sequence)) > 0;
  });
  (prefill ? metrics_.step_seconds_prefill : metrics_.step_seconds_decode)
      .Observe(absl::ToDoubleSeconds(elapsed));
  metrics_.step_tokens.Observe(static_cast<double>(plan.num_rows()));
}

void SchedulerImpl::Account(const api::StepPlan& plan) {
  for (const api::PlanSpan& span : plan.spans) {
    Sequence& sequence = *sequences_.Find(span.sequence);
    const auto rows = static_cast<std::int64_t>(span.tokens.size());
    if (sequence.request.counted) {
      metrics_.prompt_tokens_computed_total.Increment(static_cast<double>(NumPromptRows(span, sequence)));
    }
    sequence.num_computed += rows;
    sequence.num_undelivered += rows;
  }
}

void SchedulerImpl::Deliver(const api::StepResult& result) {
  for (const api::SpanResult& span : result.spans) {
    Sequence* const sequence = sequences_.Find(span.sequence);
    if (sequence == nullptr || !span.token.has_value()) {
      continue;  // ended during the step, or not at the end of its prompt yet
    }
    sequence->last_token = now_();
    if (sequence->state == SequenceState::kPrefilling) {
      sequence->MoveTo(SequenceState::kDecoding);
      sequence->first_token = sequence->last_token;
    }
    sequence->tokens.push_back(*span.token);
    sequence->num_undelivered = 0;
    if (sequence->request.counted) {
      metrics_.generated_tokens_total.Increment();
    }
    const GeneratedToken token = {*span.token, span.logprob};
    sequence->observer->OnTokens({&token, 1});
    if (const std::optional<StopDecision> stop =
            DecideStop(sequence->request.stop, eos_token_ids_, sequence->limit, *span.token,
                       sequence->num_generated())) {
      Finish(sequences_.Remove(span.sequence), stop->reason, absl::OkStatus(), stop->matched_token);
    }
  }
}

void SchedulerImpl::PublishLoad() {
  metrics_.requests_running.Set(static_cast<double>(sequences_.size()));
  mailbox_.PublishLoad(sequences_.size(), blocks_.used_blocks(), blocks_.total_blocks());
}

void SchedulerImpl::FinishRunning(base::SequenceId id, FinishReason reason, const absl::Status& status) {
  if (SequencePtr sequence = sequences_.Remove(id); sequence != nullptr) {
    Finish(std::move(sequence), reason, status);
  }
}

void SchedulerImpl::Finish(SequencePtr sequence, FinishReason reason, const absl::Status& status,
                           base::TokenId matched_token) {
  COMOE_DCHECK(!step_under_way_, "blocks change hands between steps only");
  const absl::Time now = now_();
  const bool started = sequence->state != SequenceState::kWaiting;
  sequence->MoveTo(SequenceState::kFinished);
  blocks_.Release(sequence->blocks);
  PublishLoad();

  RequestOutcome outcome;
  outcome.reason = reason;
  outcome.status = status;
  outcome.matched_token = matched_token;
  outcome.usage.prompt_tokens = sequence->num_prompt;
  outcome.usage.completion_tokens = sequence->num_generated();
  outcome.timing.queue = Elapsed(sequence->submitted, started ? sequence->started : now);
  if (sequence->num_generated() > 0) {
    const absl::Time received =
        sequence->request.received == absl::InfinitePast() ? sequence->submitted : sequence->request.received;
    outcome.timing.prefill = Elapsed(sequence->started, sequence->first_token);
    outcome.timing.decode = Elapsed(sequence->first_token, sequence->last_token);
    outcome.timing.time_to_first_token = Elapsed(received, sequence->first_token);
  }
  if (sequence->request.counted) {
    RecordEnd(*sequence, outcome);
  }

  mailbox_.FreeId(sequence->request.id);
  sequence->observer->OnFinished(outcome);
  mailbox_.CountEnd();
}

void SchedulerImpl::RecordEnd(const Sequence& sequence, const RequestOutcome& outcome) {
  metrics_.request_queue_seconds.Observe(absl::ToDoubleSeconds(outcome.timing.queue));
  if (sequence.num_generated() > 0) {
    metrics_.prefill_seconds.Observe(absl::ToDoubleSeconds(outcome.timing.prefill));
    metrics_.decode_seconds.Observe(absl::ToDoubleSeconds(outcome.timing.decode));
  }
  if (outcome.reason == FinishReason::kAborted || outcome.reason == FinishReason::kDeadline ||
      outcome.reason == FinishReason::kDraining) {
    metrics_.tokens_discarded_abort_total.Increment(static_cast<double>(sequence.num_undelivered));
  }
}

// Invariants 1 to 4 of a step about to run; 5 is asserted in Admit, 6 in Finish, 7 in Sequence::MoveTo.
bool SchedulerImpl::InvariantsHold(const api::StepPlan& plan) const {
  const std::vector<const Sequence*> running = sequences_.InOrder();
  std::vector<const KvBlockManager::State*> states;
  for (const Sequence* sequence : running) {
    states.push_back(&sequence->blocks);
    if (sequence->num_computed < 0 || sequence->num_pending() < 1) {
      return false;
    }
  }
  if (!blocks_.IsConsistent(states)) {
    return false;
  }
  const auto num_spans = static_cast<std::int64_t>(plan.spans.size());
  return plan.num_rows() >= num_spans && plan.num_rows() <= max_rows_ && num_spans >= 1 &&
         num_spans <= max_sequences_;
}

}  // namespace

std::unique_ptr<Scheduler> MakeScheduler(api::Engine& engine, const SchedulerOptions& options,
                                         base::MetricsSink& metrics) {
  return std::make_unique<SchedulerImpl>(engine, options, metrics);
}

}  // namespace comoe::batching
