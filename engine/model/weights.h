// Resident weights of a model: everything but the routed experts, packed and in device memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/weight_names.h"
#include "engine/device/device.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::model {

struct Matrix {
  device::Buffer buffer;
  tensor::MatrixLayout layout;

  tensor::PackedMatrixView view() const { return {buffer.data(), layout}; }
};

// Weights of a norm, or a bias, in device memory.
struct Vector {
  device::Buffer buffer;

  std::size_t size() const { return buffer.size() / sizeof(float); }
  operator absl::Span<const float>() const {  // NOLINT(google-explicit-constructor): it is one
    return {reinterpret_cast<const float*>(buffer.data()), size()};
  }
};

// A dense SwiGLU FFN has the layout of an expert blob: one kernel serves both.
struct Ffn {
  device::Buffer buffer;
  tensor::BlobLayout layout;

  tensor::ExpertView view() const { return {buffer.data(), &layout}; }
};

struct LayerWeights {
  Vector input_norm;                  // [D]
  Matrix qkv;                         // [(H + 2 G) P, D]: queries, keys, values
  Vector qkv_bias;                    // [(H + 2 G) P], or empty
  Vector query_norm, key_norm;        // [P] per head, [H P] and [G P] at full width, or empty
  Matrix output;                      // [D, H P]
  Vector output_bias;                 // [D], or empty
  Vector post_attention_norm;         // [D]
  std::optional<Ffn> dense;           // dense layers
  std::optional<Matrix> router;       // sparse layers: [E, D]
  std::optional<Ffn> shared;          // sparse layers with a shared expert
  std::optional<Matrix> shared_gate;  // [1, D]
};

// Constant after loading; thread-safe to read.
struct ModelWeights {
  Matrix embedding;            // [V, D]
  std::optional<Matrix> head;  // [V, D]; absent when tied to the embedding
  Vector final_norm;
  std::vector<LayerWeights> layers;

  const Matrix& lm_head() const { return head.has_value() ? *head : embedding; }
  std::uint64_t bytes() const;
};

// `source` has passed CheckTensors. Streams: one tensor at a time is read beside what is packed already.
absl::StatusOr<ModelWeights> LoadWeights(const checkpoint::TensorSource& source,
                                         const checkpoint::ModelConfig& config,
                                         const checkpoint::WeightNames& names, device::Device& device);

}  // namespace comoe::model
