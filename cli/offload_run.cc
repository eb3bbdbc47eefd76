#include "cli/offload_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

template <typename T, std::size_t N>
void Subtract(base::PerKind<T, N>& from, const base::PerKind<T, N>& what) {
  for (std::size_t i = 0; i < N; ++i) {
    from.values[i] -= what.values[i];
  }
}

// B texts side by side, a token of each a step; then the next B.
class ForcedBatch {
 public:
  ForcedBatch(api::Engine& engine, const std::vector<std::vector<base::TokenId>>& texts, std::int64_t batch)
      : engine_(engine), texts_(texts), batch_(static_cast<std::size_t>(batch)) {}

  // One token of each text. `keep_logits`: they are in the result.
  absl::StatusOr<api::StepResult> Step(bool keep_logits) {
    api::StepPlan plan;
    plan.step = {next_step_++};
    for (std::size_t b = 0; b < batch_; ++b) {
      const std::vector<base::TokenId>& text = texts_[(first_text_ + b) % texts_.size()];
      AddSpan(plan, b, position_, absl::MakeConstSpan(text).subspan(static_cast<std::size_t>(position_), 1));
      plan.spans.back().return_logits = keep_logits;
    }
    COMOE_ASSIGN_OR_RETURN(api::StepResult result, engine_.Step(plan));
    for (const api::SpanResult& span : result.spans) {
      COMOE_RETURN_IF_ERROR(span.status);
    }
    if (++position_ == length_) {
      position_ = 0;
      first_text_ += batch_;
    }
    return result;
  }

  // A prompt in the place of the first text: seconds until its last row's logits are there.
  absl::StatusOr<double> TimePrompt(absl::Span<const base::TokenId> prompt) {
    const double begin = engine_.offload_totals().wall;
    const auto chunk = static_cast<std::size_t>(engine_.capacity().max_rows);
    for (std::size_t at = 0; at < prompt.size(); at += chunk) {
      api::StepPlan plan;
      plan.step = {next_step_++};
      AddSpan(plan, batch_, static_cast<std::int64_t>(at), prompt.subspan(at, chunk));
      COMOE_ASSIGN_OR_RETURN(const api::StepResult result, engine_.Step(plan));
      COMOE_RETURN_IF_ERROR(result.spans.front().status);
    }
    return engine_.offload_totals().wall - begin;
  }

  // Texts and engine fit the batch, and the place for a prompt beside it.
  absl::Status Check(std::int64_t prompt) {
    length_ = static_cast<std::int64_t>(texts_.empty() ? 0 : texts_.front().size());
    for (const std::vector<base::TokenId>& text : texts_) {
      length_ = std::min(length_, static_cast<std::int64_t>(text.size()));
    }
    if (texts_.size() < batch_ || length_ < std::max<std::int64_t>(prompt, 2)) {
      return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch_, " and prompts of ", prompt,
                                                     " tokens need as many texts of that length; there are ",
                                                     texts_.size(), ", the shortest of ", length_,
                                                     " tokens: give more or longer text (--text, "
                                                     "--force-ids), or a smaller batch or --prompt"));
    }
    const auto places = static_cast<std::int64_t>(batch_) + 1;
    const std::int32_t blocks =
        *std::min_element(engine_.capacity().num_blocks.begin(), engine_.capacity().num_blocks.end());
    block_tokens_ = engine_.model_info().cache_groups.front().block_tokens;
    blocks_each_ = static_cast<std::int32_t>(blocks / places);
    length_ = std::min(length_, static_cast<std::int64_t>(blocks_each_) * block_tokens_);
    if (length_ < std::max<std::int64_t>(prompt, 2) ||
        engine_.capacity().max_rows < static_cast<std::int64_t>(batch_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the engine has KV for ", length_, " positions of each of ", places, " sequences and ",
                       engine_.capacity().max_rows, " rows a step: raise --kv-bytes or --max-batch-tokens"));
    }
    return absl::OkStatus();
  }

 private:
  void AddSpan(api::StepPlan& plan, std::size_t place, std::int64_t position,
               absl::Span<const base::TokenId> tokens) const {
    api::PlanSpan& span = plan.spans.emplace_back();
    span.sequence = base::SequenceId{1 + place + first_text_};
    span.start_position = position;
    span.tokens.assign(tokens.begin(), tokens.end());
    span.logits = api::LogitsMode::kLast;
    for (std::size_t g = 0; g < engine_.model_info().cache_groups.size(); ++g) {
      api::GroupState& group = span.groups.emplace_back();
      for (std::int32_t i = 0; i < blocks_each_; ++i) {
        group.blocks.push_back({static_cast<std::int32_t>(place) * blocks_each_ + i});
      }
    }
  }

  api::Engine& engine_;
  const std::vector<std::vector<base::TokenId>>& texts_;
  const std::size_t batch_;
  std::int64_t length_ = 0;  // of each text
  std::int32_t block_tokens_ = 0;
  std::int32_t blocks_each_ = 0;
  std::uint64_t next_step_ = 0;
  std::size_t first_text_ = 0;
  std::int64_t position_ = 0;
};

}  // namespace

api::OffloadTotals Difference(const api::OffloadTotals& after, const api::OffloadTotals& before) {
  api::OffloadTotals d = after;
  for (const base::Tier tier : base::kTiers) {
    d.tiers[tier].hits -= before.tiers[tier].hits;
    d.tiers[tier].misses -= before.tiers[tier].misses;
    d.tiers[tier].evictions -= before.tiers[tier].evictions;
  }
  for (std::size_t i = 0; i < base::kNumCopyDirections; ++i) {
    Subtract(d.copies.values[i].bytes, before.copies.values[i].bytes);
    d.copies.values[i].copies -= before.copies.values[i].copies;
    d.copies.values[i].seconds -= before.copies.values[i].seconds;
  }
  d.prefetch_used_bytes -= before.prefetch_used_bytes;
  d.prefetch_wasted_bytes -= before.prefetch_wasted_bytes;
  d.served_hit -= before.served_hit;
  d.served_fetch -= before.served_fetch;
  d.served_host -= before.served_host;
  d.failed_copies -= before.failed_copies;
  d.cancelled_guesses -= before.cancelled_guesses;
  d.unpinned_copies -= before.unpinned_copies;
  d.wall -= before.wall;
  d.compute -= before.compute;
  d.other -= before.other;
  d.director_observe -= before.director_observe;
  d.director_plan -= before.director_plan;
  d.host_lane -= before.host_lane;
  Subtract(d.stalled, before.stalled);
  Subtract(d.compute_stages, before.compute_stages);
  Subtract(d.copy_busy, before.copy_busy);
  Subtract(d.copy_overlapped, before.copy_overlapped);
  return d;
}

absl::StatusOr<OffloadRun> RunOffload(api::Engine& engine,
                                      const std::vector<std::vector<base::TokenId>>& texts,
                                      const OffloadRunOptions& options,
                                      absl::FunctionRef<void(std::uint64_t, std::uint64_t)> progress) {
  ForcedBatch batch(engine, texts, options.batch);
  COMOE_RETURN_IF_ERROR(batch.Check(options.prompt));
  OffloadRun run;
  // The last text, which the batch comes to last.
  const absl::Span<const base::TokenId> prompt =
      absl::MakeConstSpan(texts.back()).first(static_cast<std::size_t>(options.prompt));
  COMOE_ASSIGN_OR_RETURN(run.first_token_cold, batch.TimePrompt(prompt));
  for (std::int64_t i = 0; i < options.warmup_steps; ++i) {
    COMOE_RETURN_IF_ERROR(batch.Step(false).status());
  }
  const api::OffloadTotals before = engine.offload_totals();
  double wall = before.wall;
  run.step_seconds.reserve(static_cast<std::size_t>(options.steps));
  for (std::int64_t i = 0; i < options.steps; ++i) {
    COMOE_ASSIGN_OR_RETURN(const api::StepResult result, batch.Step(i + 1 == options.steps));
    const double now = engine.offload_totals().wall;
    run.step_seconds.push_back(now - std::exchange(wall, now));
    run.real_seconds += absl::ToDoubleSeconds(result.elapsed);
    if (i + 1 == options.steps) {
      for (const api::SpanResult& span : result.spans) {
        run.last_logits.insert(run.last_logits.end(), span.logits.begin(), span.logits.end());
      }
    }
    progress(static_cast<std::uint64_t>(i + 1), static_cast<std::uint64_t>(options.steps));
  }
  run.totals = Difference(engine.offload_totals(), before);
  run.tokens = options.steps * options.batch;
  COMOE_ASSIGN_OR_RETURN(run.first_token_warm, batch.TimePrompt(prompt));
  return run;
}

}  // namespace comoe::cli
