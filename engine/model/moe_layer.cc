#include "engine/model/moe_layer.h"

#include <algorithm>
#include <array>

#include "engine/base/status_macros.h"
#include "engine/model/expert_serving.h"

namespace comoe::model {
namespace {

using tensor::TensorView;

// One FFN over all rows, written to `out`.
absl::Status RunOneFfn(const StepContext& context, const Ffn& ffn, const TensorView& out) {
  const kernels::ExpertRows all{
      ffn.view(), absl::MakeConstSpan(context.work.all_rows).first(static_cast<std::size_t>(context.rows)),
      0};
  const std::int64_t padded = ffn.layout.gate_up.n / 2;
  return kernels::ExpertFfn(context.kernels,
                            {context.Use(context.work.normed),
                             {&all, 1},
                             context.Use(context.work.ffn_scratch).Cols(0, padded),
                             out},
                            context.stream);
}

// Router logits to experts and weights.
absl::Status QueueGate(const StepContext& context, const Matrix& router) {
  Workspace& work = context.work;
  const TensorView logits = context.Use(work.router);
  const std::int64_t k = context.config.experts_per_token;
  const auto slots = static_cast<std::size_t>(context.rows * k);
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      context.kernels, {.x = context.Use(work.normed), .w = router.view(), .bias = {}, .y = logits},
      context.stream));
  return kernels::MoeGate(
      context.kernels,
      {logits, k, context.config.normalize_weights, work.experts.first(slots), work.weights.first(slots)},
      context.stream);
}

// Waits for them: observed by the director and sorted by expert.
absl::Status ReadRouting(const StepContext& context, std::int32_t layer) {
  Workspace& work = context.work;
  const std::int64_t k = context.config.experts_per_token;
  const auto slots = static_cast<std::size_t>(context.rows * k);
  // The host needs the routing to go on.
  COMOE_RETURN_IF_ERROR(context.stream.Synchronize());
  COMOE_RETURN_IF_ERROR(TellRouting(context, Tell::kAll));
  const absl::Span<const std::int32_t> experts = work.experts.first(slots);
  context.director.ObserveRouting(
      {context.step, layer, static_cast<std::int32_t>(k), experts, work.weights.first(slots)});
  work.dispatch.Build(experts);
  return absl::OkStatus();
}

// Rows [place * T, place * T + T) of a matrix for several targets of look-ahead.
TensorView ForTarget(const StepContext& context, const TensorView& matrix, std::int64_t place) {
  return matrix.Rows(place * context.rows, context.rows);
}

// Queues the router of MoE layer `target` on this layer's input, with that layer's own norm.
absl::Status QueueLookAhead(const StepContext& context, std::int64_t target, std::int64_t place) {
  const Workspace& work = context.work;
  const LayerWeights& weights = context.weights.layers[static_cast<std::size_t>(target)];
  context.stream.SetStage({base::StageKind::kLookahead, static_cast<std::int32_t>(target)});
  COMOE_RETURN_IF_ERROR(
      kernels::RmsNorm(context.kernels,
                       {context.Use(work.residual), weights.post_attention_norm,
                        static_cast<float>(context.config.norm_epsilon), 1, context.Use(work.ahead_normed)},
                       context.stream));
  const TensorView scores = ForTarget(context, work.ahead_router, place);
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      context.kernels,
      {.x = context.Use(work.ahead_normed), .w = weights.router->view(), .bias = {}, .y = scores},
      context.stream));
  return Workspace::Transfer(scores, ForTarget(context, work.host_ahead_router, place), context.stream);
}

void TellLookAhead(const StepContext& context, std::int64_t layer, std::int64_t target, std::int64_t place) {
  const Workspace& work = context.work;
  const std::int64_t num_experts = context.config.num_experts;
  const TensorView scores = ForTarget(context, work.host_ahead_router, place);
  for (std::int64_t row = 0; row < context.rows; ++row) {
    std::copy_n(scores.f32(row), num_experts, context.work.ahead_logits.begin() + row * num_experts);
  }
  context.director.ObserveLookahead(
      {context.step, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(target),
       static_cast<std::int32_t>(num_experts),
       absl::MakeConstSpan(work.ahead_logits).first(static_cast<std::size_t>(context.rows * num_experts))});
}

// The next MoE layers' routers on this layer's input, as many as the director asks for; the host waits once
// for several.
absl::Status LookAhead(const StepContext& context, std::int64_t layer) {
  const auto& layers = context.weights.layers;
  std::int32_t left = context.director.lookahead();
  std::size_t next = static_cast<std::size_t>(layer) + 1;
  while (left > 0 && next < layers.size()) {
    std::array<std::int64_t, Workspace::kTargetsAtOnce> targets{};
    std::int64_t count = 0;
    for (; next < layers.size() && left > 0 && count < Workspace::kTargetsAtOnce; ++next) {
      if (!layers[next].router.has_value()) {
        continue;
      }
      --left;
      if (context.full_layers != nullptr && context.experts.LayerIsThere(static_cast<std::int32_t>(next))) {
        continue;  // nothing to be early for
      }
      targets[static_cast<std::size_t>(count)] = static_cast<std::int64_t>(next);
      COMOE_RETURN_IF_ERROR(QueueLookAhead(context, static_cast<std::int64_t>(next), count));
      ++count;
    }
    if (count > 0) {
      COMOE_RETURN_IF_ERROR(context.stream.Synchronize());
    }
    for (std::int64_t place = 0; place < count; ++place) {
      TellLookAhead(context, layer, targets[static_cast<std::size_t>(place)], place);
    }
  }
  return absl::OkStatus();
}

absl::Status RunSharedExpert(const StepContext& context, const LayerWeights& weights) {
  COMOE_RETURN_IF_ERROR(RunOneFfn(context, *weights.shared, context.Use(context.work.shared_out)));
  return kernels::MatMul(context.kernels,
                         {.x = context.Use(context.work.normed),
                          .w = weights.shared_gate->view(),
                          .bias = {},
                          .y = context.Use(context.work.shared_gate)},
                         context.stream);
}

// Everything is queued at once; the host hears later who chose what.
absl::Status QueueFull(const StepContext& context, std::int32_t layer, const LayerWeights& weights) {
  const Workspace& work = context.work;
  const FullLayers& full = *context.full_layers;
  const std::int64_t num_slots = context.rows * context.config.experts_per_token;
  kernels::MoeResidentArgs args;
  args.x = context.Use(work.normed);
  args.logits = context.Use(work.router);
  args.experts_per_row = context.config.experts_per_token;
  args.normalize = context.config.normalize_weights;
  args.layout = &full.layout();
  args.blobs = full.blobs(layer);
  args.scratch = work.ffn_scratch.Rows(0, num_slots).Cols(0, full.layout().gate_up.n / 2);
  args.y = work.expert_out.Rows(0, num_slots);
  args.out = context.Use(work.residual);
  args.experts = full.experts(layer, num_slots);
  args.weights = full.weights(layer, num_slots);
  if (weights.shared.has_value()) {
    context.stream.SetStage({base::StageKind::kSharedExpert, layer});
    COMOE_RETURN_IF_ERROR(RunSharedExpert(context, weights));
    args.shared = context.Use(work.shared_out);
    args.shared_gate = context.Use(work.shared_gate);
  }
  context.stream.SetStage({base::StageKind::kExpert, layer});
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      context.kernels, {.x = args.x, .w = weights.router->view(), .bias = {}, .y = args.logits},
      context.stream));
  return kernels::MoeResident(context.kernels, args, context.stream);
}

absl::Status QueueNorm(const StepContext& context, std::int32_t layer, const LayerWeights& weights,
                       FfnPart part) {
  context.stream.SetStage({base::StageKind::kGate, layer});
  kernels::RmsNormArgs norm;
  norm.x = context.Use(context.work.residual);
  norm.weight = weights.post_attention_norm;
  norm.epsilon = static_cast<float>(context.config.norm_epsilon);
  norm.y = context.Use(context.work.normed);
  norm.add = context.Use(context.work.projected);
  if (context.host_lane != nullptr && part == FfnPart::kGate) {
    norm.host_y = context.host_lane->DirectInput(context.rows);
  }
  return kernels::RmsNorm(context.kernels, norm, context.stream);
}

}  // namespace

absl::Status QueueFfn(const StepContext& context, std::int32_t layer, FfnPart part) {
  const LayerWeights& weights = context.weights.layers[static_cast<std::size_t>(layer)];
  COMOE_RETURN_IF_ERROR(QueueNorm(context, layer, weights, part));
  if (part == FfnPart::kGate) {
    return QueueGate(context, *weights.router);
  }
  if (!weights.dense.has_value()) {
    return QueueFull(context, layer, weights);
  }
  const TensorView projected = context.Use(context.work.projected);
  COMOE_RETURN_IF_ERROR(RunOneFfn(context, *weights.dense, projected));
  return kernels::Add(context.kernels, {projected, context.Use(context.work.residual)}, context.stream);
}

absl::Status ServeExperts(const StepContext& context, std::int32_t layer) {
  const LayerWeights& weights = context.weights.layers[static_cast<std::size_t>(layer)];
  Workspace& work = context.work;
  device::Stream& stream = context.stream;
  const std::int32_t l = layer;
  COMOE_RETURN_IF_ERROR(ReadRouting(context, layer));
  ExpertServing serving(context, l);
  COMOE_RETURN_IF_ERROR(serving.Begin());
  COMOE_RETURN_IF_ERROR(
      LookAhead(context, layer));  // beside the first copies: guesses need it, misses do not
  COMOE_RETURN_IF_ERROR(serving.ComputeHits());
  kernels::MoeCombineArgs combine;
  if (weights.shared.has_value()) {
    stream.SetStage({base::StageKind::kSharedExpert, l});
    COMOE_RETURN_IF_ERROR(RunSharedExpert(context, weights));
    combine.shared = context.Use(work.shared_out);
    combine.shared_gate = context.Use(work.shared_gate);
  }
  COMOE_RETURN_IF_ERROR(serving.Finish());

  const std::int64_t num_slots = context.rows * context.config.experts_per_token;
  combine.y = work.expert_out.Rows(0, num_slots);
  combine.source = work.dispatch.source();
  if (context.host_lane != nullptr) {
    combine.host_y = context.host_lane->DirectOutput(context.rows);
  }
  combine.weights = work.weights.first(static_cast<std::size_t>(num_slots));
  combine.out = context.Use(work.residual);
  stream.SetStage({base::StageKind::kCombine, l});
  return kernels::MoeCombine(context.kernels, combine, stream);
}

// Guesses for later layers, from what was routed before. With nothing missing in the next one there is
// nothing to guess that could not wait.
void GiveOrders(const StepContext& context, std::int32_t layer) {
  if (context.full_layers->NextIsFull(layer)) {
    return;
  }
  context.experts.Prefetch(context.director.Orders(layer, context.Lanes()));
}

absl::Status TellRouting(const StepContext& context, Tell which) {
  if (context.full_layers == nullptr) {
    return absl::OkStatus();
  }
  FullLayers& full = *context.full_layers;
  Workspace& work = context.work;
  ServingScratch& s = work.serving;
  const std::int64_t k = context.config.experts_per_token;
  while (!full.untold().empty()) {
    if (which == Tell::kAllButLast &&
        full.untold().front().done.state() == full.untold().back().done.state()) {
      return absl::OkStatus();
    }
    const std::int32_t layer = full.untold().front().layer;
    COMOE_RETURN_IF_ERROR(full.untold().front().done.Synchronize());
    const absl::Span<const std::int32_t> experts = full.experts(layer, context.rows * k);
    context.director.ObserveRouting(
        {context.step, layer, static_cast<std::int32_t>(k), experts, full.weights(layer, context.rows * k)});
    work.dispatch.Build(experts);
    s.used.clear();
    for (const DispatchPlan::Group& group : work.dispatch.groups()) {
      s.used.push_back(group.expert);
    }
    context.experts.CountHits(layer, s.used);
    s.imbalance.push_back(work.dispatch.Imbalance());
    s.served_hit += s.used.size();
    full.Told();
  }
  return absl::OkStatus();
}

}  // namespace comoe::model
