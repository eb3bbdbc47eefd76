#include "engine/model/attention_layer.h"

#include <cmath>

#include "engine/base/status_macros.h"

namespace comoe::model {
namespace {

using tensor::TensorView;

// Norms of queries and keys, over each head or over all heads at once, clipping, and the rotary embedding:
// of these what the model has.
absl::Status PrepareHeads(const StepContext& context, const LayerWeights& weights, const TensorView& qkv) {
  const checkpoint::ModelConfig& config = context.config;
  const std::int64_t query_cols = config.num_heads * config.head_dim;
  const std::int64_t kv_cols = config.num_kv_heads * config.head_dim;
  kernels::HeadsArgs heads;
  heads.x = qkv.Cols(0, query_cols + kv_cols);
  heads.heads = config.num_heads;
  heads.kv_heads = config.num_kv_heads;
  heads.epsilon = static_cast<float>(config.norm_epsilon);
  heads.cos = context.Use(context.work.cos);
  heads.sin = context.Use(context.work.sin);
  const bool per_head = config.qk_norm == checkpoint::QkNorm::kPerHead;
  if (per_head && config.clip_qkv == 0.0) {
    heads.query_norm = weights.query_norm;
    heads.key_norm = weights.key_norm;
  } else if (config.qk_norm != checkpoint::QkNorm::kNone) {
    const TensorView queries = heads.x.Cols(0, query_cols);
    const TensorView keys = heads.x.Cols(query_cols, kv_cols);
    COMOE_RETURN_IF_ERROR(kernels::RmsNorm(
        context.kernels,
        {queries, weights.query_norm, heads.epsilon, per_head ? config.num_heads : 1, queries},
        context.stream));
    COMOE_RETURN_IF_ERROR(kernels::RmsNorm(
        context.kernels, {keys, weights.key_norm, heads.epsilon, per_head ? config.num_kv_heads : 1, keys},
        context.stream));
  }
  if (config.clip_qkv > 0.0) {
    COMOE_RETURN_IF_ERROR(
        kernels::Clamp(context.kernels, {qkv, static_cast<float>(config.clip_qkv)}, context.stream));
  }
  return kernels::Heads(context.kernels, heads, context.stream);
}

}  // namespace

absl::Status RunAttention(const StepContext& context, std::int64_t layer, const LayerWeights& weights) {
  const checkpoint::ModelConfig& config = context.config;
  const kernels::KernelTable& table = context.kernels;
  device::Stream& stream = context.stream;
  const TensorView residual = context.Use(context.work.residual);
  const TensorView normed = context.Use(context.work.normed);
  const TensorView qkv = context.Use(context.work.qkv);
  const TensorView attended = context.Use(context.work.attention);
  const TensorView projected = context.Use(context.work.projected);
  const std::int64_t query_cols = config.num_heads * config.head_dim;
  const std::int64_t kv_cols = config.num_kv_heads * config.head_dim;
  const TensorView queries = qkv.Cols(0, query_cols);
  const TensorView keys = qkv.Cols(query_cols, kv_cols);
  const TensorView values = qkv.Cols(query_cols + kv_cols, kv_cols);

  stream.SetStage({base::StageKind::kAttention, static_cast<std::int32_t>(layer)});
  COMOE_RETURN_IF_ERROR(kernels::RmsNorm(
      table, {residual, weights.input_norm, static_cast<float>(config.norm_epsilon), 1, normed}, stream));
  COMOE_RETURN_IF_ERROR(kernels::MatMul(
      table, {.x = normed, .w = weights.qkv.view(), .bias = weights.qkv_bias, .y = qkv}, stream));
  COMOE_RETURN_IF_ERROR(PrepareHeads(context, weights, qkv));

  const auto group = static_cast<std::size_t>(context.groups.group_of_layer[static_cast<std::size_t>(layer)]);
  const tensor::KvView& kv = context.kv.layer(layer);
  const std::int32_t prepared = context.prepared ? static_cast<std::int32_t>(group) : -1;
  COMOE_RETURN_IF_ERROR(
      kernels::AppendKv(table, {keys, values, context.sequences[group], kv, prepared}, stream));
  kernels::AttentionArgs attention;
  attention.queries = queries;
  attention.sequences = context.sequences[group];
  attention.kv = kv;
  attention.heads = config.num_heads;
  attention.window = config.layers[static_cast<std::size_t>(layer)].window_tokens;
  attention.scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
  attention.out = attended;
  attention.table = prepared;
  COMOE_RETURN_IF_ERROR(kernels::Attention(table, attention, stream));

  return kernels::MatMul(
      table, {.x = attended, .w = weights.output.view(), .bias = weights.output_bias, .y = projected},
      stream);
}

}  // namespace comoe::model
