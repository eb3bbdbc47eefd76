#include "engine/model/weights.h"

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/expert_packer.h"

namespace comoe::model {
namespace {

using checkpoint::TensorSource;

absl::StatusOr<Matrix> LoadMatrix(const TensorSource& source, const std::vector<std::string>& names,
                                  device::Device& device) {
  Matrix matrix;
  COMOE_ASSIGN_OR_RETURN(matrix.layout, checkpoint::StackedLayout(source, names));
  COMOE_ASSIGN_OR_RETURN(matrix.buffer, device.Allocate(device::MemoryKind::kDevice, matrix.layout.bytes(),
                                                        tensor::kWeightAlignment));
  COMOE_RETURN_IF_ERROR(checkpoint::PackStacked(source, names, matrix.layout,
                                                absl::MakeSpan(matrix.buffer.data(), matrix.layout.bytes())));
  return matrix;
}

absl::StatusOr<Ffn> LoadFfn(const TensorSource& source, const checkpoint::FfnNames& names,
                            std::int64_t hidden, std::int64_t intermediate, device::Device& device) {
  COMOE_ASSIGN_OR_RETURN(const tensor::MatrixLayout down, checkpoint::StackedLayout(source, {names.down}));
  Ffn ffn;
  ffn.layout = tensor::BlobLayout::Make(down.dtype, hidden, intermediate);
  COMOE_ASSIGN_OR_RETURN(
      ffn.buffer, device.Allocate(device::MemoryKind::kDevice, ffn.layout.bytes, tensor::kWeightAlignment));
  COMOE_RETURN_IF_ERROR(
      checkpoint::PackFfn(source, names, ffn.layout, absl::MakeSpan(ffn.buffer.data(), ffn.layout.bytes)));
  return ffn;
}

// Empty for an empty name: what the config does not call for.
absl::StatusOr<std::vector<float>> LoadVector(const TensorSource& source, const std::string& name) {
  if (name.empty()) {
    return std::vector<float>();
  }
  return checkpoint::ReadFloats(source, name);
}

absl::Status LoadAttention(const TensorSource& source, const checkpoint::LayerNames& names,
                           device::Device& device, LayerWeights& layer) {
  COMOE_ASSIGN_OR_RETURN(layer.qkv, LoadMatrix(source, {names.query, names.key, names.value}, device));
  COMOE_ASSIGN_OR_RETURN(layer.output, LoadMatrix(source, {names.output}, device));
  for (const std::string& name : {names.query_bias, names.key_bias, names.value_bias}) {
    COMOE_ASSIGN_OR_RETURN(const std::vector<float> bias, LoadVector(source, name));
    layer.qkv_bias.insert(layer.qkv_bias.end(), bias.begin(), bias.end());
  }
  COMOE_ASSIGN_OR_RETURN(layer.output_bias, LoadVector(source, names.output_bias));
  COMOE_ASSIGN_OR_RETURN(layer.query_norm, LoadVector(source, names.query_norm));
  COMOE_ASSIGN_OR_RETURN(layer.key_norm, LoadVector(source, names.key_norm));
  return absl::OkStatus();
}

absl::StatusOr<LayerWeights> LoadLayer(const TensorSource& source, const checkpoint::ModelConfig& config,
                                       const checkpoint::LayerNames& names, bool sparse,
                                       device::Device& device) {
  LayerWeights layer;
  COMOE_ASSIGN_OR_RETURN(layer.input_norm, LoadVector(source, names.input_norm));
  COMOE_ASSIGN_OR_RETURN(layer.post_attention_norm, LoadVector(source, names.post_attention_norm));
  COMOE_RETURN_IF_ERROR(LoadAttention(source, names, device, layer));
  if (!sparse) {
    COMOE_ASSIGN_OR_RETURN(layer.dense,
                           LoadFfn(source, names.dense, config.hidden, config.dense_intermediate, device));
    return layer;
  }
  COMOE_ASSIGN_OR_RETURN(layer.router, LoadMatrix(source, {names.router}, device));
  if (config.shared_intermediate > 0) {
    COMOE_ASSIGN_OR_RETURN(layer.shared,
                           LoadFfn(source, names.shared, config.hidden, config.shared_intermediate, device));
    COMOE_ASSIGN_OR_RETURN(layer.shared_gate, LoadMatrix(source, {names.shared_sigmoid_gate}, device));
  }
  return layer;
}

}  // namespace

std::uint64_t ModelWeights::bytes() const {
  const auto vector_bytes = [](const std::vector<float>& v) { return v.size() * sizeof(float); };
  std::uint64_t sum =
      embedding.buffer.size() + (head.has_value() ? head->buffer.size() : 0) + vector_bytes(final_norm);
  for (const LayerWeights& layer : layers) {
    sum += layer.qkv.buffer.size() + layer.output.buffer.size();
    for (const std::vector<float>* v : {&layer.input_norm, &layer.qkv_bias, &layer.query_norm,
                                        &layer.key_norm, &layer.output_bias, &layer.post_attention_norm}) {
      sum += vector_bytes(*v);
    }
    sum += layer.dense.has_value() ? layer.dense->buffer.size() : 0;
    sum += layer.router.has_value() ? layer.router->buffer.size() : 0;
    sum += layer.shared.has_value() ? layer.shared->buffer.size() : 0;
    sum += layer.shared_gate.has_value() ? layer.shared_gate->buffer.size() : 0;
  }
  return sum;
}

absl::StatusOr<ModelWeights> LoadWeights(const TensorSource& source, const checkpoint::ModelConfig& config,
                                         const checkpoint::WeightNames& names, device::Device& device) {
  ModelWeights weights;
  COMOE_ASSIGN_OR_RETURN(weights.embedding, LoadMatrix(source, {names.embedding()}, device));
  if (!config.tied_embeddings) {
    COMOE_ASSIGN_OR_RETURN(weights.head, LoadMatrix(source, {names.head()}, device));
  }
  COMOE_ASSIGN_OR_RETURN(weights.final_norm, LoadVector(source, names.final_norm()));
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    COMOE_ASSIGN_OR_RETURN(
        LayerWeights layer,
        LoadLayer(source, config, names.layer(l), config.layers[static_cast<std::size_t>(l)].sparse, device));
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace comoe::model
