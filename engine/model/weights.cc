#include "engine/model/weights.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/expert_packer.h"

namespace comoe::model {
namespace {

using checkpoint::TensorSource;

// Fills buffers in device memory: at once where the host may write there, else through host memory and a
// copy.
class Loader {
 public:
  explicit Loader(device::Device& device) : device_(device) {}

  bool rows() const { return device_.row_major_weights(); }
  using Fill = absl::FunctionRef<absl::Status(absl::Span<std::byte> bytes)>;
  absl::StatusOr<device::Buffer> Load(std::size_t bytes, Fill fill) {
    COMOE_ASSIGN_OR_RETURN(device::Buffer buffer,
                           device_.Allocate(device::MemoryKind::kDevice, bytes, tensor::kWeightAlignment));
    if (device_.host_accessible()) {
      COMOE_RETURN_IF_ERROR(fill({buffer.data(), bytes}));
      return buffer;
    }
    if (stream_ == nullptr) {
      COMOE_ASSIGN_OR_RETURN(stream_, device_.CreateStream("load", device::StreamKind::kCopy));
    }
    // Pageable: a whole embedding matrix need not be page-locked for one copy.
    if (host_.size() < bytes) {
      host_ = device::Buffer();
      COMOE_ASSIGN_OR_RETURN(host_,
                             device_.Allocate(device::MemoryKind::kHost, bytes, tensor::kWeightAlignment));
    }
    COMOE_RETURN_IF_ERROR(fill({host_.data(), bytes}));
    COMOE_RETURN_IF_ERROR(stream_->CopyAsync(buffer.data(), host_.data(), bytes));
    COMOE_RETURN_IF_ERROR(stream_->Synchronize());
    return buffer;
  }

 private:
  device::Device& device_;
  std::unique_ptr<device::Stream> stream_;
  device::Buffer host_;
};

absl::StatusOr<Matrix> LoadMatrix(const TensorSource& source, const std::vector<std::string>& names,
                                  Loader& loader) {
  Matrix matrix;
  COMOE_ASSIGN_OR_RETURN(matrix.layout, checkpoint::StackedLayout(source, names));
  matrix.layout.order = loader.rows() ? tensor::MatrixOrder::kRows : tensor::MatrixOrder::kPanels;
  COMOE_ASSIGN_OR_RETURN(matrix.buffer, loader.Load(matrix.layout.bytes(), [&](absl::Span<std::byte> bytes) {
    return checkpoint::PackStacked(source, names, matrix.layout, bytes);
  }));
  return matrix;
}

absl::StatusOr<Ffn> LoadFfn(const TensorSource& source, const checkpoint::FfnNames& names,
                            std::int64_t hidden, std::int64_t intermediate, Loader& loader) {
  COMOE_ASSIGN_OR_RETURN(const tensor::MatrixLayout down, checkpoint::StackedLayout(source, {names.down}));
  Ffn ffn;
  ffn.layout = tensor::BlobLayout::Make(down.dtype, hidden, intermediate);
  COMOE_ASSIGN_OR_RETURN(ffn.buffer, loader.Load(ffn.layout.bytes, [&](absl::Span<std::byte> bytes) {
    return checkpoint::PackFfn(source, names, ffn.layout, bytes);
  }));
  return ffn;
}

// One after the other; those with an empty name, which the config does not call for, are left out.
absl::StatusOr<Vector> LoadVector(const TensorSource& source, const std::vector<std::string>& names,
                                  Loader& loader) {
  std::vector<float> values;
  for (const std::string& name : names) {
    if (!name.empty()) {
      COMOE_ASSIGN_OR_RETURN(const std::vector<float> part, checkpoint::ReadFloats(source, name));
      values.insert(values.end(), part.begin(), part.end());
    }
  }
  Vector vector;
  if (!values.empty()) {
    COMOE_ASSIGN_OR_RETURN(vector.buffer,
                           loader.Load(values.size() * sizeof(float), [&](absl::Span<std::byte> bytes) {
                             std::memcpy(bytes.data(), values.data(), bytes.size());
                             return absl::OkStatus();
                           }));
  }
  return vector;
}

absl::Status LoadAttention(const TensorSource& source, const checkpoint::LayerNames& names, Loader& loader,
                           LayerWeights& layer) {
  COMOE_ASSIGN_OR_RETURN(layer.qkv, LoadMatrix(source, {names.query, names.key, names.value}, loader));
  COMOE_ASSIGN_OR_RETURN(layer.output, LoadMatrix(source, {names.output}, loader));
  COMOE_ASSIGN_OR_RETURN(layer.qkv_bias,
                         LoadVector(source, {names.query_bias, names.key_bias, names.value_bias}, loader));
  COMOE_ASSIGN_OR_RETURN(layer.output_bias, LoadVector(source, {names.output_bias}, loader));
  COMOE_ASSIGN_OR_RETURN(layer.query_norm, LoadVector(source, {names.query_norm}, loader));
  COMOE_ASSIGN_OR_RETURN(layer.key_norm, LoadVector(source, {names.key_norm}, loader));
  return absl::OkStatus();
}

absl::StatusOr<LayerWeights> LoadLayer(const TensorSource& source, const checkpoint::ModelConfig& config,
                                       const checkpoint::LayerNames& names, bool sparse, Loader& loader) {
  LayerWeights layer;
  COMOE_ASSIGN_OR_RETURN(layer.input_norm, LoadVector(source, {names.input_norm}, loader));
  COMOE_ASSIGN_OR_RETURN(layer.post_attention_norm, LoadVector(source, {names.post_attention_norm}, loader));
  COMOE_RETURN_IF_ERROR(LoadAttention(source, names, loader, layer));
  if (!sparse) {
    COMOE_ASSIGN_OR_RETURN(layer.dense,
                           LoadFfn(source, names.dense, config.hidden, config.dense_intermediate, loader));
    return layer;
  }
  COMOE_ASSIGN_OR_RETURN(layer.router, LoadMatrix(source, {names.router}, loader));
  if (config.shared_intermediate > 0) {
    COMOE_ASSIGN_OR_RETURN(layer.shared,
                           LoadFfn(source, names.shared, config.hidden, config.shared_intermediate, loader));
    COMOE_ASSIGN_OR_RETURN(layer.shared_gate, LoadMatrix(source, {names.shared_sigmoid_gate}, loader));
  }
  return layer;
}

}  // namespace

std::uint64_t ModelWeights::bytes() const {
  std::uint64_t sum =
      embedding.buffer.size() + (head.has_value() ? head->buffer.size() : 0) + final_norm.buffer.size();
  for (const LayerWeights& layer : layers) {
    sum += layer.qkv.buffer.size() + layer.output.buffer.size();
    for (const Vector* v : {&layer.input_norm, &layer.qkv_bias, &layer.query_norm, &layer.key_norm,
                            &layer.output_bias, &layer.post_attention_norm}) {
      sum += v->buffer.size();
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
  Loader loader(device);
  ModelWeights weights;
  COMOE_ASSIGN_OR_RETURN(weights.embedding, LoadMatrix(source, {names.embedding()}, loader));
  if (!config.tied_embeddings) {
    COMOE_ASSIGN_OR_RETURN(weights.head, LoadMatrix(source, {names.head()}, loader));
  }
  COMOE_ASSIGN_OR_RETURN(weights.final_norm, LoadVector(source, {names.final_norm()}, loader));
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    COMOE_ASSIGN_OR_RETURN(
        LayerWeights layer,
        LoadLayer(source, config, names.layer(l), config.layers[static_cast<std::size_t>(l)].sparse, loader));
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace comoe::model
