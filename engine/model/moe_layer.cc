#include "engine/model/moe_layer.h"

#include <algorithm>

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

// Router logits to experts and weights, observed by the director and sorted by expert.
absl::Status Route(const StepContext& context, std::int64_t layer, const Matrix& router) {
  Workspace& work = context.work;
  const TensorView logits = context.Use(work.router);
  const std::int64_t k = context.config.experts_per_token;
  const auto slots = static_cast<std::size_t>(context.rows * k);
  const absl::Span<std::int32_t> experts = work.experts.first(slots);
  const absl::Span<float> weights = work.weights.first(slots);
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      context.kernels, {.x = context.Use(work.normed), .w = router.view(), .bias = {}, .y = logits},
      context.stream));
  COMOE_RETURN_IF_ERROR(kernels::MoeGate(
      context.kernels, {logits, k, context.config.normalize_weights, experts, weights}, context.stream));
  // The host needs the routing to go on.
  COMOE_RETURN_IF_ERROR(context.stream.Synchronize());
  context.director.ObserveRouting(
      {context.step, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(k), experts, weights});
  work.dispatch.Build(experts);
  return absl::OkStatus();
}

// The next MoE layers' routers on this layer's input, as many as the director asks for.
absl::Status LookAhead(const StepContext& context, std::int64_t layer) {
  const std::int32_t wanted = context.director.lookahead();
  const Workspace& work = context.work;
  const auto& layers = context.weights.layers;
  std::int32_t found = 0;
  for (std::size_t target = static_cast<std::size_t>(layer) + 1; target < layers.size() && found < wanted;
       ++target) {
    if (!layers[target].router.has_value()) {
      continue;
    }
    ++found;
    context.stream.SetStage({base::StageKind::kLookahead, static_cast<std::int32_t>(target)});
    COMOE_RETURN_IF_ERROR(
        kernels::RmsNorm(context.kernels,
                         {context.Use(work.residual), layers[target].post_attention_norm,
                          static_cast<float>(context.config.norm_epsilon), 1, context.Use(work.ahead_normed)},
                         context.stream));
    COMOE_RETURN_IF_ERROR(kernels::MatMul(context.kernels,
                                          {.x = context.Use(work.ahead_normed),
                                           .w = layers[target].router->view(),
                                           .bias = {},
                                           .y = context.Use(work.ahead_router)},
                                          context.stream));
    COMOE_RETURN_IF_ERROR(Workspace::Transfer(context.Use(work.ahead_router),
                                              context.Use(work.host_ahead_router), context.stream));
    COMOE_RETURN_IF_ERROR(context.stream.Synchronize());
    for (std::int64_t row = 0; row < context.rows; ++row) {
      std::copy_n(work.host_ahead_router.f32(row), context.config.num_experts,
                  context.work.ahead_logits.begin() + row * context.config.num_experts);
    }
    context.director.ObserveLookahead(
        {context.step, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(target),
         static_cast<std::int32_t>(context.config.num_experts),
         absl::MakeConstSpan(work.ahead_logits)
             .first(static_cast<std::size_t>(context.rows * context.config.num_experts))});
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

// Everything is queued at once; who chose what is read after the step.
absl::Status RunResident(const StepContext& context, std::int64_t layer, const LayerWeights& weights) {
  const Workspace& work = context.work;
  const ResidentExperts& resident = *context.resident;
  const std::int64_t num_slots = context.rows * context.config.experts_per_token;
  kernels::MoeResidentArgs args;
  args.x = context.Use(work.normed);
  args.logits = context.Use(work.router);
  args.experts_per_row = context.config.experts_per_token;
  args.normalize = context.config.normalize_weights;
  args.layout = &resident.layout();
  args.blobs = resident.blobs(layer);
  args.scratch = work.ffn_scratch.Rows(0, num_slots).Cols(0, resident.layout().gate_up.n / 2);
  args.y = work.expert_out.Rows(0, num_slots);
  args.out = context.Use(work.residual);
  args.experts = resident.experts(layer, num_slots);
  args.weights = resident.weights(layer, num_slots);
  if (weights.shared.has_value()) {
    context.stream.SetStage({base::StageKind::kSharedExpert, static_cast<std::int32_t>(layer)});
    COMOE_RETURN_IF_ERROR(RunSharedExpert(context, weights));
    args.shared = context.Use(work.shared_out);
    args.shared_gate = context.Use(work.shared_gate);
  }
  context.stream.SetStage({base::StageKind::kExpert, static_cast<std::int32_t>(layer)});
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      context.kernels, {.x = args.x, .w = weights.router->view(), .bias = {}, .y = args.logits},
      context.stream));
  return kernels::MoeResident(context.kernels, args, context.stream);
}

absl::Status RunSparse(const StepContext& context, std::int64_t layer, const LayerWeights& weights) {
  if (context.resident != nullptr) {
    return RunResident(context, layer, weights);
  }
  Workspace& work = context.work;
  device::Stream& stream = context.stream;
  const auto l = static_cast<std::int32_t>(layer);
  stream.SetStage({base::StageKind::kGate, l});
  COMOE_RETURN_IF_ERROR(Route(context, layer, *weights.router));
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
  combine.weights = work.weights.first(static_cast<std::size_t>(num_slots));
  combine.out = context.Use(work.residual);
  stream.SetStage({base::StageKind::kCombine, l});
  return kernels::MoeCombine(context.kernels, combine, stream);
}

}  // namespace

void ReportResidentRouting(const StepContext& context) {
  Workspace& work = context.work;
  const std::int64_t k = context.config.experts_per_token;
  for (std::size_t layer = 0; layer < context.config.layers.size(); ++layer) {
    if (!context.config.layers[layer].sparse) {
      continue;
    }
    const auto l = static_cast<std::int64_t>(layer);
    const absl::Span<const std::int32_t> experts = context.resident->experts(l, context.rows * k);
    context.director.ObserveRouting({context.step, static_cast<std::int32_t>(layer),
                                     static_cast<std::int32_t>(k), experts,
                                     context.resident->weights(l, context.rows * k)});
    work.dispatch.Build(experts);
    std::int64_t most = 0;
    for (const DispatchPlan::Group& group : work.dispatch.groups()) {
      most = std::max(most, group.count);
    }
    work.serving.imbalance.push_back(static_cast<double>(most * context.config.num_experts) /
                                     static_cast<double>(std::max<std::size_t>(experts.size(), 1)));
    work.serving.served_hit += work.dispatch.groups().size();
  }
}

absl::Status RunFfn(const StepContext& context, std::int64_t layer, const LayerWeights& weights) {
  const TensorView residual = context.Use(context.work.residual);
  context.stream.SetStage({base::StageKind::kGate, static_cast<std::int32_t>(layer)});
  COMOE_RETURN_IF_ERROR(
      kernels::RmsNorm(context.kernels,
                       {residual, weights.post_attention_norm,
                        static_cast<float>(context.config.norm_epsilon), 1, context.Use(context.work.normed)},
                       context.stream));
  if (!weights.dense.has_value()) {
    return RunSparse(context, layer, weights);
  }
  const TensorView projected = context.Use(context.work.projected);
  COMOE_RETURN_IF_ERROR(RunOneFfn(context, *weights.dense, projected));
  return kernels::Add(context.kernels, {projected, residual}, context.stream);
}

}  // namespace comoe::model
