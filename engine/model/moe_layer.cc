#include "engine/model/moe_layer.h"

#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace comoe::model {
namespace {

using tensor::TensorView;

// Most models route a step's rows to no more experts than this in a layer; beyond it the lists go to the
// heap.
constexpr std::size_t kInlineExperts = 128;
using Leases = absl::InlinedVector<experts::Lease, kInlineExperts>;
using ExpertList = absl::InlinedVector<kernels::ExpertRows, kInlineExperts>;

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
  const absl::Span<std::int32_t> experts = absl::MakeSpan(work.experts).first(slots);
  const absl::Span<float> weights = absl::MakeSpan(work.weights).first(slots);
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      context.kernels, {.x = context.Use(work.normed), .w = router.view(), .bias = {}, .y = logits},
      context.stream));
  COMOE_RETURN_IF_ERROR(kernels::MoeGate(
      context.kernels, {logits, k, context.config.normalize_weights, experts, weights}, context.stream));
  context.director.ObserveRouting(
      {context.step, static_cast<std::int32_t>(layer), static_cast<std::int32_t>(k), experts, weights});
  work.dispatch.Build(experts);
  return absl::OkStatus();
}

// Leases on every expert the layer needs, and the rows each computes.
absl::Status AcquireExperts(const StepContext& context, std::int64_t layer, Leases& leases,
                            ExpertList& list) {
  const DispatchPlan& dispatch = context.work.dispatch;
  const api::SlotMap& slots = context.director.slots(static_cast<std::int32_t>(layer));
  for (const DispatchPlan::Group& group : dispatch.groups()) {
    const base::ExpertKey key{static_cast<std::int32_t>(layer), group.expert};
    if (slots.slot[static_cast<std::size_t>(group.expert)] < 0) {
      return absl::UnimplementedError(
          absl::StrCat("expert ", key.expert, " of layer ", key.layer,
                       " is not on the device; only policy resident is supported"));
    }
    COMOE_ASSIGN_OR_RETURN(experts::Served served, context.experts.Acquire(key));
    leases.push_back(std::move(served.lease));
    list.push_back({leases.back().view(),
                    dispatch.rows().subspan(static_cast<std::size_t>(group.first),
                                            static_cast<std::size_t>(group.count)),
                    group.first});
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

absl::Status RunSparse(const StepContext& context, std::int64_t layer, const LayerWeights& weights) {
  Workspace& work = context.work;
  COMOE_RETURN_IF_ERROR(Route(context, layer, *weights.router));
  Leases leases;
  ExpertList list;
  COMOE_RETURN_IF_ERROR(AcquireExperts(context, layer, leases, list));
  const std::int64_t num_slots = context.rows * context.config.experts_per_token;
  const std::int64_t padded = list.front().expert.layout->gate_up.n / 2;
  const TensorView expert_out = work.expert_out.Rows(0, num_slots);
  COMOE_RETURN_IF_ERROR(kernels::ExpertFfn(
      context.kernels,
      {context.Use(work.normed), list, work.ffn_scratch.Rows(0, num_slots).Cols(0, padded), expert_out},
      context.stream));

  kernels::MoeCombineArgs combine;
  if (weights.shared.has_value()) {
    COMOE_RETURN_IF_ERROR(RunSharedExpert(context, weights));
    combine.shared = context.Use(work.shared_out);
    combine.shared_gate = context.Use(work.shared_gate);
  }
  combine.y = expert_out;
  combine.source = work.dispatch.source();
  combine.weights = absl::MakeConstSpan(work.weights).first(static_cast<std::size_t>(num_slots));
  combine.out = context.Use(work.residual);
  COMOE_RETURN_IF_ERROR(kernels::MoeCombine(context.kernels, combine, context.stream));
  // The leases end with this function: the work that reads their bytes must have ended, too.
  return context.stream.Synchronize();
}

}  // namespace

absl::Status RunFfn(const StepContext& context, std::int64_t layer, const LayerWeights& weights) {
  const TensorView residual = context.Use(context.work.residual);
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
