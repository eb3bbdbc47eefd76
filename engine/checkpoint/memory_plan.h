// What a model weighs, from its config alone: said before anything is loaded.
#pragma once

#include <cstdint>

#include "engine/checkpoint/model_config.h"
#include "engine/tensor/dtype.h"

namespace comoe::checkpoint {

// Parameters as stored in the checkpoint; bytes as packed in memory (panels filled up, alignment).
struct MemoryPlan {
  std::uint64_t total_parameters = 0;
  // What one token uses: everything but the experts it is not routed to. The embedding counts whole.
  std::uint64_t active_parameters = 0;
  std::uint64_t expert_parameters = 0;  // of one routed expert

  std::int64_t num_sparse_layers = 0;
  std::int64_t num_experts = 0;    // all layers together
  std::uint64_t expert_bytes = 0;  // one blob
  std::uint64_t all_experts_bytes = 0;
  std::uint64_t experts_per_token_bytes = 0;  // K blobs a sparse layer

  std::uint64_t embedding_bytes = 0;  // row-major [V, D]; 0 when tied (the head serves both)
  std::uint64_t head_bytes = 0;       // packed
  std::uint64_t attention_bytes = 0;  // fused QKV and output, packed
  std::uint64_t router_bytes = 0;     // packed
  std::uint64_t shared_bytes = 0;     // shared experts as blobs, and their sigmoid gates
  std::uint64_t dense_bytes = 0;      // FFNs of dense layers as blobs
  std::uint64_t vector_bytes = 0;     // norms and biases, F32
  std::uint64_t resident_bytes = 0;   // the sum of the seven above
  std::uint64_t total_bytes = 0;      // resident and all experts

  std::uint64_t kv_bytes_per_token = 0;  // keys and values of all layers, windows not considered
};

// `dtype` is that of all matrices, `kv_dtype` that of keys and values. Cannot overflow for a config that
// ParseModelConfig accepted.
MemoryPlan PlanMemory(const ModelConfig& config, tensor::DType dtype,
                      tensor::DType kv_dtype = tensor::DType::kF32);

}  // namespace comoe::checkpoint
