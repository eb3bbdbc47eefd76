#include "engine/checkpoint/memory_plan.h"

#include "engine/checkpoint/weight_names.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::checkpoint {
namespace {

std::uint64_t Unsigned(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Elements of all tensors but routed experts: their names and shapes are those the loader asks for.
struct ResidentCounts {
  std::uint64_t elements = 0;
  std::uint64_t vector_elements = 0;
};

ResidentCounts CountResident(const ModelConfig& config) {
  ModelConfig without_experts = config;
  without_experts.num_experts = 0;  // the routers are added below; this skips a million names
  ResidentCounts counts;
  VisitExpectedTensors(without_experts, [&](const ExpectedTensor& tensor) {
    std::uint64_t elements = 1;
    for (const std::int64_t dimension : tensor.shape) {
      elements *= Unsigned(dimension);
    }
    counts.elements += elements;
    counts.vector_elements += IsMatrix(tensor.role) ? 0 : elements;
    return true;
  });
  return counts;
}

}  // namespace

MemoryPlan PlanMemory(const ModelConfig& config, tensor::DType dtype, tensor::DType kv_dtype) {
  using tensor::BlobLayout;
  using tensor::MatrixLayout;
  const std::int64_t d = config.hidden;
  const std::int64_t q = config.num_heads * config.head_dim;
  const std::int64_t kv = config.num_kv_heads * config.head_dim;
  const std::uint64_t layers = Unsigned(config.num_layers());
  const std::uint64_t element_bytes = tensor::DTypeBytes(dtype);

  MemoryPlan plan;
  for (const LayerConfig& layer : config.layers) {
    plan.num_sparse_layers += layer.sparse ? 1 : 0;
  }
  const std::uint64_t sparse = Unsigned(plan.num_sparse_layers);
  plan.num_experts = plan.num_sparse_layers * config.num_experts;
  plan.expert_parameters = 3 * Unsigned(d) * Unsigned(config.expert_intermediate);
  const ResidentCounts counts = CountResident(config);
  const std::uint64_t resident_parameters = counts.elements + sparse * Unsigned(config.num_experts * d);
  plan.total_parameters = resident_parameters + Unsigned(plan.num_experts) * plan.expert_parameters;
  plan.active_parameters =
      resident_parameters + sparse * Unsigned(config.experts_per_token) * plan.expert_parameters;

  plan.expert_bytes = BlobLayout::Make(dtype, d, config.expert_intermediate).bytes;
  plan.all_experts_bytes = Unsigned(plan.num_experts) * plan.expert_bytes;
  plan.experts_per_token_bytes = sparse * Unsigned(config.experts_per_token) * plan.expert_bytes;

  plan.embedding_bytes = config.tied_embeddings ? 0 : Unsigned(config.vocab_size * d) * element_bytes;
  plan.head_bytes = MatrixLayout{dtype, config.vocab_size, d}.bytes();
  plan.attention_bytes =
      layers * (MatrixLayout{dtype, q + 2 * kv, d}.bytes() + MatrixLayout{dtype, d, q}.bytes());
  plan.router_bytes = sparse * MatrixLayout{dtype, config.num_experts, d}.bytes();
  if (config.shared_intermediate != 0) {
    plan.shared_bytes = sparse * (BlobLayout::Make(dtype, d, config.shared_intermediate).bytes +
                                  MatrixLayout{dtype, 1, d}.bytes());
  }
  plan.dense_bytes = (layers - sparse) * BlobLayout::Make(dtype, d, config.dense_intermediate).bytes;
  plan.vector_bytes = counts.vector_elements * sizeof(float);
  plan.resident_bytes = plan.embedding_bytes + plan.head_bytes + plan.attention_bytes + plan.router_bytes +
                        plan.shared_bytes + plan.dense_bytes + plan.vector_bytes;
  plan.total_bytes = plan.resident_bytes + plan.all_experts_bytes;
  plan.kv_bytes_per_token = layers * 2 * Unsigned(kv) * tensor::DTypeBytes(kv_dtype);
  return plan;
}

}  // namespace comoe::checkpoint
