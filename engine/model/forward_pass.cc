#include "engine/model/forward_pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/attention_layer.h"
#include "engine/model/moe_layer.h"

namespace comoe::model {

ForwardPass::ForwardPass(const ModelWeights& weights, StepContext context)
    : weights_(weights), rope_(context.config.rope, context.config.head_dim), context_(std::move(context)) {
  context_.sequences.resize(context_.groups.groups.size());
  const auto max_rows = static_cast<std::size_t>(context_.work.residual.rows);
  tokens_.reserve(max_rows);
  logits_rows_.reserve(max_rows);
  best_wanted_.reserve(max_rows);
}

void ForwardPass::SetRows(const api::StepPlan& plan, BestWanted best_wanted) {
  context_.step = plan.step;
  context_.rows = plan.num_rows();
  tokens_.clear();
  logits_rows_.clear();
  best_wanted_.clear();
  for (std::vector<kernels::SequenceRows>& sequences : context_.sequences) {
    sequences.clear();
  }
  for (const api::PlanSpan& span : plan.spans) {
    const auto first = static_cast<std::int64_t>(tokens_.size());
    const auto count = static_cast<std::int64_t>(span.tokens.size());
    for (std::int64_t i = 0; i < count; ++i) {
      context_.work.positions[static_cast<std::size_t>(first + i)] = span.start_position + i;
    }
    tokens_.insert(tokens_.end(), span.tokens.begin(), span.tokens.end());
    for (std::size_t group = 0; group < context_.sequences.size(); ++group) {
      context_.sequences[group].push_back({first, count, span.start_position, span.groups[group].blocks});
    }
    const std::int64_t first_logits = span.logits == api::LogitsMode::kAll ? 0 : count - 1;
    for (std::int64_t i = span.logits == api::LogitsMode::kNone ? count : first_logits; i < count; ++i) {
      logits_rows_.push_back(first + i);
      best_wanted_.push_back(best_wanted(span, i));
    }
  }
}

absl::Status ForwardPass::Run(const api::StepPlan& plan, BestWanted best_wanted, LogitsSink logits) {
  SetRows(plan, best_wanted);
  absl::Status status = RunLayers();
  // Who routed where is told while the device works on the layers after, so that this takes no time of its
  // own.
  if (status.ok()) {
    status = TellRouting(context_, Tell::kAllButLast);
  }
  if (status.ok()) {
    status = ComputeLogits(logits);
  }
  if (status.ok()) {
    status = TellRouting(context_, Tell::kAll);
  }
  if (!status.ok()) {
    Abandon();
  }
  return status;
}

absl::Status ForwardPass::RunLayers() {
  Workspace& work = context_.work;
  rope_.Fill(absl::MakeConstSpan(work.positions).first(tokens_.size()), context_.Use(work.host_cos),
             context_.Use(work.host_sin));
  if (std::exchange(work.any_row_failed, false)) {
    std::fill(work.row_status.begin(), work.row_status.end(), absl::OkStatus());
  }
  if (context_.full_layers == nullptr || !context_.full_layers->NextIsFull(-1)) {
    context_.experts.Prefetch(context_.director.Orders(-1, context_.Lanes()));
  }
  context_.stream.SetStage({base::StageKind::kEmbed});
  COMOE_RETURN_IF_ERROR(
      Workspace::Transfer(context_.Use(work.host_cos), context_.Use(work.cos), context_.stream));
  COMOE_RETURN_IF_ERROR(
      Workspace::Transfer(context_.Use(work.host_sin), context_.Use(work.sin), context_.stream));
  COMOE_RETURN_IF_ERROR(kernels::Embed(
      context_.kernels, {tokens_, weights_.embedding.view(), context_.Use(work.residual)}, context_.stream));
  COMOE_RETURN_IF_ERROR(Prepare());
  const auto num_layers = static_cast<std::int32_t>(weights_.layers.size());
  for (std::int32_t layer = 0; layer < num_layers;) {
    COMOE_ASSIGN_OR_RETURN(layer, RunStretch(layer));
  }
  return absl::OkStatus();
}

// Where every sequence has one row, the device's kernels find them where they were put before the first
// layer.
absl::Status ForwardPass::Prepare() {
  const std::vector<kernels::SequenceRows>& sequences = context_.sequences.front();
  context_.prepared = kernels::HasPrepareSequences(context_.kernels) &&
                      static_cast<std::int64_t>(sequences.size()) == context_.rows;
  for (std::size_t group = 0; context_.prepared && group < context_.sequences.size(); ++group) {
    COMOE_RETURN_IF_ERROR(kernels::PrepareSequences(
        context_.kernels, {static_cast<std::int32_t>(group), context_.sequences[group]}, context_.stream));
  }
  captures_ = context_.captured != nullptr && context_.prepared && context_.stream.can_capture() &&
              context_.rows <= CapturedSteps::kMostRows;
  if (captures_) {
    std::int64_t longest = 0;
    for (const kernels::SequenceRows& sequence : sequences) {
      longest = std::max(longest, sequence.start_position + 1);
    }
    context_bound_ = kernels::ContextBound(longest);
    context_.captured->BeginStep();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int32_t> ForwardPass::RunStretch(std::int32_t first) {
  const auto num_layers = static_cast<std::int32_t>(weights_.layers.size());
  const std::int32_t most =
      captures_ ? std::min(num_layers, (first / CapturedSteps::kMostLayers + 1) * CapturedSteps::kMostLayers)
                : first + 1;
  std::int32_t end = first;
  std::int32_t last_full = -1;
  bool full = true;
  for (; end < most; ++end) {
    if (weights_.layers[static_cast<std::size_t>(end)].dense.has_value()) {
      continue;
    }
    full = false;
    if (context_.full_layers != nullptr) {
      COMOE_ASSIGN_OR_RETURN(full, context_.full_layers->Begin(end, context_.stream));
    }
    if (!full) {
      break;
    }
    last_full = end;
  }
  const auto queue = [&]() -> absl::Status {
    for (std::int32_t layer = first; layer < end + (full ? 0 : 1); ++layer) {
      absl::Status status = RunAttention(context_, layer, weights_.layers[static_cast<std::size_t>(layer)]);
      if (status.ok()) {
        status = QueueFfn(context_, layer, layer < end ? FfnPart::kAll : FfnPart::kGate);
      }
      if (!status.ok()) {
        return base::Annotate(status, absl::StrCat("layer ", layer));
      }
    }
    return absl::OkStatus();
  };
  context_.stream.SetStage({base::StageKind::kAttention, first});
  COMOE_RETURN_IF_ERROR(
      captures_ ? context_.captured->Run(
                      {first, end, !full, static_cast<std::int32_t>(context_.rows), context_bound_},
                      context_.stream, queue)
                : queue());
  if (last_full >= 0) {
    COMOE_RETURN_IF_ERROR(context_.full_layers->Queued(context_.stream));
    GiveOrders(context_, last_full);
  }
  if (full) {
    return end;
  }
  COMOE_RETURN_IF_ERROR(base::Annotate(ServeExperts(context_, end), absl::StrCat("layer ", end)));
  return end + 1;
}

// A step failed in its midst: nothing of it may still run when its leases end. What that says is no news.
void ForwardPass::Abandon() {
  static_cast<void>(context_.stream.Synchronize());
  if (context_.host_lane != nullptr) {
    static_cast<void>(context_.host_lane->Synchronize());
  }
  // Of the last layer's decisions some may not have been carried out. Where one was, the cache finds the
  // expert there when it is asked for it again.
  for (const ServingScratch::Miss& miss : context_.work.serving.fetches) {
    if (miss.slot != api::kStagingSlot) {
      context_.director.OnVacated(base::Tier::kDevice, miss.slot, miss.key, true);
    }
  }
  context_.work.serving.Clear();
  if (context_.full_layers != nullptr) {
    context_.full_layers->Abandon();
  }
}

absl::Status ForwardPass::ComputeLogits(LogitsSink logits) {
  Workspace& work = context_.work;
  device::Stream& stream = context_.stream;
  const auto epsilon = static_cast<float>(context_.config.norm_epsilon);
  stream.SetStage({base::StageKind::kHead});
  const std::size_t row_bytes = static_cast<std::size_t>(context_.config.hidden) * sizeof(float);
  for (std::size_t begin = 0; begin < logits_rows_.size(); begin += Workspace::kLogitsRows) {
    const std::size_t count = std::min<std::size_t>(logits_rows_.size() - begin, Workspace::kLogitsRows);
    const tensor::TensorView rows = work.normed.Rows(0, static_cast<std::int64_t>(count));
    const tensor::TensorView out = work.logits.Rows(0, static_cast<std::int64_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      const tensor::TensorView from = work.residual.Rows(logits_rows_[begin + i], 1);
      COMOE_RETURN_IF_ERROR(
          stream.CopyAsync(rows.Rows(static_cast<std::int64_t>(i), 1).data, from.data, row_bytes));
    }
    COMOE_RETURN_IF_ERROR(
        kernels::RmsNorm(context_.kernels, {rows, weights_.final_norm, epsilon, 1, rows}, stream));
    COMOE_RETURN_IF_ERROR(kernels::MatMul(
        context_.kernels, {.x = rows, .w = weights_.lm_head().view(), .bias = {}, .y = out}, stream));
    const absl::Span<const std::int64_t> wanted = absl::MakeConstSpan(best_wanted_).subspan(begin, count);
    COMOE_ASSIGN_OR_RETURN(const std::int64_t k, FetchLogits(wanted));
    COMOE_RETURN_IF_ERROR(stream.Synchronize());
    for (std::size_t i = 0; i < count; ++i) {
      RowLogits values;
      if (k > 0 && wanted[i] > 0) {
        const std::size_t at = i * static_cast<std::size_t>(k);
        values.best_ids = work.top_ids.subspan(at, static_cast<std::size_t>(k));
        values.best = work.top_values.subspan(at, static_cast<std::size_t>(k));
      } else {
        values.all = {work.host_logits.f32(static_cast<std::int64_t>(i)),
                      static_cast<std::size_t>(context_.config.vocab_size)};
      }
      COMOE_RETURN_IF_ERROR(logits(logits_rows_[begin + i], values));
    }
  }
  return stream.Synchronize();
}

// Queues what brings the rows of work.logits to the host: the k highest of each row that needs no more, all
// of the others. Returns k; 0: all of all.
absl::StatusOr<std::int64_t> ForwardPass::FetchLogits(absl::Span<const std::int64_t> best_wanted) {
  Workspace& work = context_.work;
  const auto rows = static_cast<std::int64_t>(best_wanted.size());
  const std::int64_t k = *std::max_element(best_wanted.begin(), best_wanted.end());
  const auto few = rows - std::count(best_wanted.begin(), best_wanted.end(), 0);
  if (k == 0 || !kernels::PaysTopLogits(context_.kernels, few, context_.config.vocab_size)) {
    COMOE_RETURN_IF_ERROR(
        Workspace::Transfer(work.logits.Rows(0, rows), work.host_logits.Rows(0, rows), context_.stream));
    return 0;
  }
  const auto chosen = static_cast<std::size_t>(rows * k);
  COMOE_RETURN_IF_ERROR(kernels::TopLogits(
      context_.kernels,
      {work.logits.Rows(0, rows), k, work.top_scratch.first(kernels::TopLogitsScratchBytes(rows, k)),
       work.top_ids.first(chosen), work.top_values.first(chosen)},
      context_.stream));
  for (std::int64_t row = 0; row < rows; ++row) {
    if (best_wanted[static_cast<std::size_t>(row)] == 0) {
      COMOE_RETURN_IF_ERROR(
          Workspace::Transfer(work.logits.Rows(row, 1), work.host_logits.Rows(row, 1), context_.stream));
    }
  }
  return k;
}

}  // namespace comoe::model
