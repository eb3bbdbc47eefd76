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
#include "scheduler/batching/intake.h"
#include "scheduler/batching/mailbox.h"
#include "scheduler/batching/outcome.h"
#include "scheduler/batching/running_batch.h"
#include "scheduler/batching/scheduler_metrics.h"
#include "scheduler/batching/sequence_table.h"
#include "scheduler/batching/stop_conditions.h"

namespace comoe::batching {
namespace {

using SequencePtr = std::unique_ptr<Sequence>;

absl::Status ShuttingDown() { return absl::UnavailableError("the service is shutting down"); }

FinishReason FinishReasonOf(CancelReason reason) {
  return reason == CancelReason::kStopMatched ? FinishReason::kStopString : FinishReason::kAborted;
}

// The rows of a span that belong to its sequence's prompt.
std::int64_t NumPromptRows(const api::PlanSpan& span, const Sequence& sequence) {
  const auto rows = static_cast<std::int64_t>(span.tokens.size());
  return std::clamp<std::int64_t>(sequence.num_prompt - span.start_position, 0, rows);
}

// The loop: hear, admit, compose, step, deliver, retire. All of it runs on the engine thread; the interface's
// methods only post to the mailbox.
//
// Invariants, asserted in debug builds: (1) used, cached and free blocks are the pool, a block is free once
// or has as many holders as it is held by; (2) a step's rows and spans keep to their limits; (3) a running
// sequence has at least one row to run, no rows computed beyond its tokens, and as a decode gets one row a
// step or is counted as passed over; (4) nobody waits while nothing runs, and a step computes something; (5)
// what can never fit does not run; (6) a preemption frees blocks for somebody who goes on; (7) a prefix is
// found only after its rows were computed; (8) blocks change hands between steps only, and so do (9) leases,
// which no step leaves behind; (10) a request ends once, and gets no token after its end; (11) its tokens do
// not depend on who else runs, as a row's result does not; (12) the kinds of engine time sum to wall time.
class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(api::Engine& engine, const SchedulerOptions& options, base::MetricsSink& metrics);
  ~SchedulerImpl() override;

  absl::Status SubmitAll(std::vector<Submission> submissions) override;
  bool Cancel(absl::string_view request_id, CancelReason reason) override {
    return mailbox_.Cancel(request_id, reason);
  }
  LoadSnapshot load() const override { return mailbox_.load(); }
  void BeginDrain() override { mailbox_.BeginDrain(); }
  void ForgetPrefixes(bool force, std::function<void(absl::StatusOr<std::int64_t>)> done) override {
    mailbox_.ForgetPrefixes({force, std::move(done)});
  }
  bool Stop(absl::Time until) override { return mailbox_.Stop(until); }

 private:
  // Everything below is the engine thread's.
  void Run();
  void HandleMail(Mail mail);
  void EndTimeLimits();
  void Admit();
  void NoteStarted(Sequence& sequence);
  void Requeue(std::vector<SequencePtr> preempted);
  void RunStep();
  void HintNext(const api::StepPlan& plan);
  void CheckHealth();
  void RecordStep(const api::StepPlan& plan, absl::Duration elapsed);
  void Account(const api::StepPlan& plan);
  void Deliver(api::StepResult result);
  static void DeliverScores(Sequence& sequence, const api::SpanResult& span);
  void DeliverToken(Sequence& sequence, api::SpanResult& span);
  void PublishLoad();
  void CountTime(base::Counter& kind);
  void CountStepTime(absl::Duration expert_stall);

  // Ends a request that is in neither queue nor table any more: the only place where that happens.
  void Finish(SequencePtr sequence, FinishReason reason, const absl::Status& status,
              base::TokenId matched_token = -1);
  void FinishRunning(base::SequenceId id, FinishReason reason, const absl::Status& status);

  // Constant after construction.
  api::Engine& engine_;
  const std::function<absl::Time()> now_;
  const std::function<void()> told_;
  const std::function<void(const absl::Status&)> engine_failed_;
  const api::ConstantStepCosts constant_costs_;

  // The engine thread's.
  RunningBatch batch_;
  std::uint64_t next_step_ = 0;
  bool engine_lost_ = false;
  bool step_under_way_ = false;
  bool preempted_ = false;  // in the last step
  Sequence* refused_ =
      nullptr;  // next in the queue, which this thread alone takes from; until it looks again
  absl::Time time_counted_;

  const IntakeLimits intake_;  // constant; of batch_, too

  // Synchronised by themselves.
  SchedulerMetrics metrics_;
  Mailbox mailbox_;

  std::thread thread_;  // last: it finds everything above constructed
};

SchedulerImpl::SchedulerImpl(api::Engine& engine, const SchedulerOptions& options, base::MetricsSink& metrics)
    : engine_(engine),
      now_(options.now ? options.now : [] { return absl::Now(); }),
      told_(options.told ? options.told : [] {}),
      engine_failed_(options.engine_failed),
      batch_(
          engine,
          {options.max_batch_tokens, options.max_sequences, options.max_chunk_tokens, options.reuse_prefixes},
          options.costs != nullptr ? *options.costs : constant_costs_),
      intake_{batch_.max_positions(), engine.model_info().vocab_size, engine.model_info().eos_token_ids},
      metrics_(metrics),
      mailbox_(std::max<std::int64_t>(1, options.max_waiting_requests),
               std::max<std::int64_t>(1, options.max_waiting_tokens), now_, metrics_) {
  PublishLoad();
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "engine");
}

SchedulerImpl::~SchedulerImpl() {
  Stop(absl::InfinitePast());
  thread_.join();
}

absl::Status SchedulerImpl::SubmitAll(std::vector<Submission> submissions) {
  std::vector<SequencePtr> sequences;
  for (Submission& submission : submissions) {
    COMOE_ASSIGN_OR_RETURN(SequencePtr sequence, MakeSequence(std::move(submission), intake_, now_()));
    sequences.push_back(std::move(sequence));
  }
  return mailbox_.Post(std::move(sequences));
}

void SchedulerImpl::Run() {
  time_counted_ = absl::Now();
  bool stop = false;
  while (!stop) {
    told_();
    CountTime(metrics_.busy_seconds_sched);
    Mail mail = mailbox_.Wait(/*busy=*/!batch_.empty());
    CountTime(metrics_.busy_seconds_idle);
    stop = mail.stop;
    HandleMail(std::move(mail));
    EndTimeLimits();
    refused_ = nullptr;
    if (!preempted_) {
      Admit();
    }
    preempted_ = false;
    told_();
    if (!stop && !batch_.empty()) {
      RunStep();
    }
  }
  for (const Sequence* sequence : batch_.InOrder()) {
    FinishRunning(sequence->id, FinishReason::kDraining, ShuttingDown());
  }
  while (SequencePtr preempted = mailbox_.PopWaiting()) {
    Finish(std::move(preempted), FinishReason::kDraining, ShuttingDown());
  }
  told_();
  for (const ForgetRequest& request : mailbox_.Exit()) {
    request.done(ShuttingDown());
  }
}

// By the real clock, whatever tests make of time.
void SchedulerImpl::CountTime(base::Counter& kind) {
  const absl::Time now = absl::Now();
  kind.Increment(absl::ToDoubleSeconds(Elapsed(time_counted_, now)));
  time_counted_ = now;
}

void SchedulerImpl::CountStepTime(absl::Duration expert_stall) {
  const absl::Time now = absl::Now();
  const absl::Duration elapsed = Elapsed(time_counted_, now);
  const absl::Duration stall = std::clamp(expert_stall, absl::ZeroDuration(), elapsed);
  metrics_.busy_seconds_expert_stall.Increment(absl::ToDoubleSeconds(stall));
  metrics_.busy_seconds_compute.Increment(absl::ToDoubleSeconds(elapsed - stall));
  time_counted_ = now;
}

void SchedulerImpl::HandleMail(Mail mail) {
  for (auto& [sequence, reason] : mail.withdrawn) {
    Finish(std::move(sequence), FinishReasonOf(reason), absl::OkStatus());
  }
  for (const auto& [id, reason] : mail.cancelled) {
    FinishRunning(id, FinishReasonOf(reason), absl::OkStatus());
  }
  const absl::Status late = absl::DeadlineExceededError("the request's deadline has passed");
  const absl::Time now = now_();
  for (SequencePtr& sequence : mail.expired) {
    const bool time_limit = sequence->request.deadline > now;
    Finish(std::move(sequence), time_limit ? FinishReason::kTimeLimit : FinishReason::kDeadline,
           time_limit ? absl::OkStatus() : late);
  }
  for (const Sequence* sequence : batch_.InOrder()) {
    if (sequence->request.deadline <= now) {
      FinishRunning(sequence->id, FinishReason::kDeadline, late);
    }
  }
  for (SequencePtr& sequence : mail.drained) {
    Finish(std::move(sequence), FinishReason::kDraining, ShuttingDown());
  }
  for (const ForgetRequest& request : mail.forget) {
    if (!batch_.empty() && !request.force) {
      request.done(absl::FailedPreconditionError(
          absl::StrCat(batch_.size(), " requests run and use the prefix cache; force it, or wait")));
    } else {
      const std::int64_t forgotten = batch_.ForgetPrefixes();
      PublishLoad();
      request.done(forgotten);
    }
  }
}

// Not between a step and its delivery: whoever set a limit wants what there is.
void SchedulerImpl::EndTimeLimits() {
  const absl::Time now = now_();
  for (const Sequence* sequence : batch_.InOrder()) {
    if (sequence->time_limit <= now) {
      FinishRunning(sequence->id, FinishReason::kTimeLimit, absl::OkStatus());
    }
  }
}

void SchedulerImpl::Admit() {
  while (SequencePtr sequence = mailbox_.PopWaiting()) {
    Sequence& candidate = *sequence;
    if (!batch_.TryAdmit(sequence)) {
      COMOE_DCHECK(!batch_.empty(), "nobody waits while nothing runs");
      refused_ = &candidate;
      mailbox_.PutBack(std::move(sequence));
      return;
    }
    mailbox_.NoteAdmitted(candidate.id);
    PublishLoad();
    if (!candidate.has_run()) {
      NoteStarted(candidate);
    }
  }
}

// The first time; what a preempted one finds in memory when it starts again is no cached prompt of the
// client's.
void SchedulerImpl::NoteStarted(Sequence& sequence) {
  sequence.started = now_();
  sequence.num_prompt_counted = sequence.num_cached;
  sequence.num_cached_at_start = sequence.num_cached;
  if (sequence.request.counted && sequence.request.prompt_logprobs < 0) {
    metrics_.prefix_cache_lookup_tokens_total.Increment(static_cast<double>(sequence.num_prompt));
    metrics_.prefix_cache_hit_tokens_total.Increment(static_cast<double>(sequence.num_cached));
    metrics_.prompt_tokens_cached_total.Increment(static_cast<double>(sequence.num_cached));
  }
  sequence.observer->OnStarted(sequence.num_cached);
}

void SchedulerImpl::Requeue(std::vector<SequencePtr> preempted) {
  preempted_ = !preempted.empty();
  for (SequencePtr& sequence : preempted) {
    metrics_.preemptions_total.Increment();
    mailbox_.PutBack(std::move(sequence));
  }
}

void SchedulerImpl::RunStep() {
  ComposedStep composed = batch_.Compose(base::StepId{next_step_++});
  const api::StepPlan& plan = composed.plan;
  Requeue(std::move(composed.preempted));
  PublishLoad();
  COMOE_DCHECK(batch_.IsConsistent(plan), "a step keeps to the limits, and blocks and rows add up");
  const absl::Time begin = now_();
  HintNext(plan);
  CountTime(metrics_.busy_seconds_sched);
  step_under_way_ = true;
  absl::StatusOr<api::StepResult> result = engine_.Step(plan);
  step_under_way_ = false;
  CountStepTime(result.ok() ? result->expert_stall : absl::ZeroDuration());
  RecordStep(plan, Elapsed(begin, now_()));
  const absl::Status status = result.ok() ? CheckResult(plan, *result, intake_.vocab_size) : result.status();
  if (!status.ok()) {
    for (const api::PlanSpan& span : plan.spans) {
      FinishRunning(span.sequence, FinishReason::kError, status);
    }
    CheckHealth();
    return;
  }
  // What one sequence lacked is no other's concern; its blocks were not completed, so nothing of them is
  // published.
  for (const api::SpanResult& span : result->spans) {
    if (!span.status.ok()) {
      FinishRunning(span.sequence, FinishReason::kError, span.status);
    }
  }
  Account(plan);
  // Who cancelled or ran out of time during the step gets no token of it.
  HandleMail(mailbox_.Collect());
  Deliver(*std::move(result));
}

// After a failed step: whether any other can succeed.
void SchedulerImpl::CheckHealth() {
  const absl::Status health = engine_.health();
  if (health.ok()) {
    return;
  }
  for (const Sequence* sequence : batch_.InOrder()) {
    FinishRunning(sequence->id, FinishReason::kError, health);
  }
  if (!std::exchange(engine_lost_, true) && engine_failed_) {
    engine_failed_(health);
  }
}

// The engine hears what comes after this step, of one request a step: whoever was taken in and gets no row
// yet, or else who is next in the queue, which had no place. Each once.
void SchedulerImpl::HintNext(const api::StepPlan& plan) {
  if (Sequence* const next = batch_.FindPutOff(plan)) {
    next->hinted = true;
    engine_.HintPrompt(batch_.FirstChunk(*next));
    return;
  }
  if (refused_ != nullptr && !std::exchange(refused_->hinted, true)) {
    engine_.HintPrompt(batch_.FirstChunk(*refused_));
  }
}

void SchedulerImpl::RecordStep(const api::StepPlan& plan, absl::Duration elapsed) {
  if (std::none_of(plan.spans.begin(), plan.spans.end(), [this](const api::PlanSpan& span) {
        return batch_.Find(span.sequence)->request.counted;
      })) {
    return;
  }
  const bool prefill = std::any_of(plan.spans.begin(), plan.spans.end(), [this](const api::PlanSpan& span) {
    return NumPromptRows(span, *batch_.Find(span.sequence)) > 0;
  });
  (prefill ? metrics_.step_seconds_prefill : metrics_.step_seconds_decode)
      .Observe(absl::ToDoubleSeconds(elapsed));
  metrics_.step_tokens.Observe(static_cast<double>(plan.num_rows()));
  metrics_.step_sequences.Observe(static_cast<double>(plan.spans.size()));
}

void SchedulerImpl::Account(const api::StepPlan& plan) {
  batch_.Account(plan);
  for (const api::PlanSpan& span : plan.spans) {
    if (batch_.Find(span.sequence) == nullptr) {
      continue;  // it failed
    }
    Sequence& sequence = *batch_.Find(span.sequence);
    sequence.num_undelivered += static_cast<std::int64_t>(span.tokens.size());
    // What a preemption made it compute again is counted once.
    const std::int64_t prompt = std::min(sequence.num_computed, sequence.num_prompt);
    if (sequence.request.counted && prompt > sequence.num_prompt_counted) {
      metrics_.prompt_tokens_computed_total.Increment(
          static_cast<double>(prompt - sequence.num_prompt_counted));
      sequence.num_prompt_counted = prompt;
    }
  }
}

void SchedulerImpl::Deliver(api::StepResult result) {
  for (api::SpanResult& span : result.spans) {
    Sequence* const sequence = batch_.Find(span.sequence);
    if (sequence == nullptr) {
      continue;  // ended during the step
    }
    DeliverScores(*sequence, span);
    if (span.token.has_value()) {
      DeliverToken(*sequence, span);
    } else if (sequence->num_pending() == 0) {
      COMOE_DCHECK(sequence->request.prefill_only, "a token is drawn where the known ones end");
      FinishRunning(span.sequence, FinishReason::kMaxTokens, absl::OkStatus());
    }
  }
}

// Each once: what a preemption made it compute again was delivered before.
void SchedulerImpl::DeliverScores(Sequence& sequence, const api::SpanResult& span) {
  const auto count = static_cast<std::int64_t>(span.scores.size());
  // The last of them is that of the row before the last that was computed, or of the prompt's last row.
  const std::int64_t end = std::min(sequence.num_computed, sequence.num_prompt - 1);
  if (const std::int64_t fresh = std::min(count, end - sequence.num_scored); fresh > 0) {
    sequence.num_scored += fresh;
    sequence.observer->OnPromptScores(absl::MakeConstSpan(span.scores).last(static_cast<std::size_t>(fresh)));
  }
}

void SchedulerImpl::DeliverToken(Sequence& sequence, api::SpanResult& span) {
  sequence.last_token = now_();
  if (sequence.state == SequenceState::kPrefilling) {
    sequence.MoveTo(SequenceState::kDecoding);
  }
  if (sequence.num_generated() == 0) {
    sequence.first_token = sequence.last_token;
  }
  sequence.tokens.push_back(*span.token);
  sequence.num_undelivered = 0;
  if (sequence.request.counted) {
    metrics_.generated_tokens_total.Increment();
  }
  const GeneratedToken token = {*span.token, std::move(span.logprobs)};
  sequence.observer->OnTokens({&token, 1});
  if (const std::optional<StopDecision> stop = DecideStop(
          sequence.request.stop, intake_.eos_token_ids, sequence.limit, token.id, sequence.num_generated())) {
    Finish(batch_.Remove(sequence.id), stop->reason, absl::OkStatus(), stop->matched_token);
  }
}

void SchedulerImpl::PublishLoad() {
  const KvBlockManager::Counts blocks = batch_.blocks();
  metrics_.requests_running.Set(static_cast<double>(batch_.size()));
  metrics_.kv_blocks_used.Set(static_cast<double>(blocks.used));
  metrics_.kv_blocks_cached.Set(static_cast<double>(blocks.cached));
  metrics_.kv_blocks_free.Set(static_cast<double>(blocks.free));
  metrics_.kv_usage_ratio.Set(static_cast<double>(blocks.used) / static_cast<double>(blocks.total()));
  mailbox_.PublishLoad(batch_.size(), blocks);
}

void SchedulerImpl::FinishRunning(base::SequenceId id, FinishReason reason, const absl::Status& status) {
  if (SequencePtr sequence = batch_.Remove(id); sequence != nullptr) {
    Finish(std::move(sequence), reason, status);
  }
}

void SchedulerImpl::Finish(SequencePtr sequence, FinishReason reason, const absl::Status& status,
                           base::TokenId matched_token) {
  COMOE_DCHECK(!step_under_way_, "blocks change hands between steps only");
  sequence->MoveTo(SequenceState::kFinished);
  PublishLoad();
  const RequestOutcome outcome = MakeOutcome(*sequence, reason, status, matched_token, now_());
  if (sequence->request.counted) {
    RecordOutcome(*sequence, outcome, metrics_);
  }
  mailbox_.FreeId(sequence->request.id);
  sequence->observer->OnFinished(outcome);
  mailbox_.CountEnd();
}

}  // namespace

std::unique_ptr<Scheduler> MakeScheduler(api::Engine& engine, const SchedulerOptions& options,
                                         base::MetricsSink& metrics) {
  return std::make_unique<SchedulerImpl>(engine, options, metrics);
}

}  // namespace comoe::batching
