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
}

void ForwardPass::SetRows(const api::StepPlan& plan) {
  context_.step = plan.step;
  context_.rows = plan.num_rows();
  tokens_.clear();
  logits_rows_.clear();
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
    }
  }
}

absl::Status ForwardPass::Run(const api::StepPlan& plan, LogitsSink logits) {
  SetRows(plan);
  Workspace& work = context_.work;
  rope_.Fill(absl::MakeConstSpan(work.positions).first(tokens_.size()), context_.Use(work.host_cos),
             context_.Use(work.host_sin));
  if (std::exchange(work.any_row_failed, false)) {
    std::fill(work.row_status.begin(), work.row_status.end(), absl::OkStatus());
  }
  api::LaneState lanes = context_.lanes;
  context_.experts.Describe(lanes);
  context_.experts.Prefetch(context_.director.Orders(-1, lanes));
  context_.stream.SetStage({base::StageKind::kEmbed});
  COMOE_RETURN_IF_ERROR(
      Workspace::Transfer(context_.Use(work.host_cos), context_.Use(work.cos), context_.stream));
  COMOE_RETURN_IF_ERROR(
      Workspace::Transfer(context_.Use(work.host_sin), context_.Use(work.sin), context_.stream));
  COMOE_RETURN_IF_ERROR(kernels::Embed(
      context_.kernels, {tokens_, weights_.embedding.view(), context_.Use(work.residual)}, context_.stream));
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const auto l = static_cast<std::int64_t>(layer);
    const LayerWeights& weights = weights_.layers[layer];
    absl::Status status = RunAttention(context_, l, weights);
    if (status.ok()) {
      status = RunFfn(context_, l, weights);
    }
    if (!status.ok()) {
      Abandon();
      return base::Annotate(status, absl::StrCat("layer ", layer));
    }
  }
  COMOE_RETURN_IF_ERROR(ComputeLogits(logits));
  if (context_.resident != nullptr) {
    ReportResidentRouting(context_);
  }
  return absl::OkStatus();
}

// A layer failed in its midst: nothing of it may still run when its leases end. What that says is no news.
void ForwardPass::Abandon() {
  static_cast<void>(context_.stream.Synchronize());
  if (context_.host_lane != nullptr) {
    static_cast<void>(context_.host_lane->stream().Synchronize());
  }
  context_.work.serving.Clear();
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
    const tensor::TensorView host = work.host_logits.Rows(0, static_cast<std::int64_t>(count));
    COMOE_RETURN_IF_ERROR(Workspace::Transfer(out, host, stream));
    COMOE_RETURN_IF_ERROR(stream.Synchronize());
    for (std::size_t i = 0; i < count; ++i) {
      COMOE_RETURN_IF_ERROR(logits(
          logits_rows_[begin + i],
          {host.f32(static_cast<std::int64_t>(i)), static_cast<std::size_t>(context_.config.vocab_size)}));
    }
  }
  return stream.Synchronize();
}

}  // namespace comoe::model
