// Which tensor of a checkpoint plays which part, and what shape it must have.
//
// Names follow the Hugging Face layout of the model's family. Letters: V vocabulary, D hidden, H heads, G KV
// heads, P head dim, E experts, F the intermediate size of the FFN at hand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/ids.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/tensor/dtype.h"

namespace comoe::checkpoint {

enum class WeightRole {
  kEmbedding,          // [V, D]
  kFinalNorm,          // [D]
  kHead,               // [V, D]; not listed when tied to the embedding
  kInputNorm,          // [D]
  kQuery,              // [H P, D]
  kKey,                // [G P, D]
  kValue,              // [G P, D]
  kOutput,             // [D, H P]
  kQueryBias,          // [H P]
  kKeyBias,            // [G P]
  kValueBias,          // [G P]
  kOutputBias,         // [D]
  kQueryNorm,          // [P], or [H P] at full width
  kKeyNorm,            // [P], or [G P] at full width
  kPostAttentionNorm,  // [D]
  kRouter,             // [E, D]
  kExpertGate,         // [F, D]
  kExpertUp,           // [F, D]
  kExpertDown,         // [D, F]
  kSharedGate,         // [F, D]
  kSharedUp,           // [F, D]
  kSharedDown,         // [D, F]
  kSharedSigmoidGate,  // [1, D]
  kDenseGate,          // [F, D]
  kDenseUp,            // [F, D]
  kDenseDown,          // [D, F]
};

// Matrices are packed and multiplied with; the rest (norms, biases) is read as F32.
bool IsMatrix(WeightRole role);

// The three matrices of a SwiGLU FFN.
struct FfnNames {
  std::string gate;  // [F, D]
  std::string up;    // [F, D]
  std::string down;  // [D, F]
};

// Names that the config does not call for are empty.
struct LayerNames {
  std::string input_norm;
  std::string query, key, value, output;
  std::string query_bias, key_bias, value_bias, output_bias;
  std::string query_norm, key_norm;
  std::string post_attention_norm;
  std::string router;  // sparse layers
  FfnNames shared;     // sparse layers with a shared expert
  std::string shared_sigmoid_gate;
  FfnNames dense;  // dense layers
};

// A value. Expert names are made on request: a model has tens of thousands.
class WeightNames {
 public:
  explicit WeightNames(const ModelConfig& config);

  const std::string& embedding() const { return embedding_; }
  const std::string& final_norm() const { return final_norm_; }
  // The embedding's name when tied.
  const std::string& head() const { return head_; }
  const LayerNames& layer(std::int64_t l) const { return layers_[static_cast<std::size_t>(l)]; }
  FfnNames Expert(base::ExpertKey key) const;

 private:
  std::string embedding_, final_norm_, head_;
  std::vector<LayerNames> layers_;
  bool mixtral_spelling_ = false;  // block_sparse_moe.experts.N.{w1,w3,w2}
};

struct ExpectedTensor {
  WeightRole role = WeightRole::kEmbedding;
  std::int32_t layer = -1;   // -1: not of a layer
  std::int32_t expert = -1;  // of routed experts
  std::string name;
  std::vector<std::int64_t> shape;
};

// Calls `visit` for every tensor the config needs, layer by layer, until it returns false.
void VisitExpectedTensors(const ModelConfig& config, absl::FunctionRef<bool(const ExpectedTensor&)> visit);

struct TensorReport {
  tensor::DType expert_dtype = tensor::DType::kBf16;  // of all routed experts
  std::vector<std::string>
      unexpected;  // names nothing asks for, sorted; rotary inv_freq buffers are not counted
};

// That every tensor the config needs exists with its shape and a usable dtype: matrices that are packed
// together (q, k and v of a layer; the three of an FFN) have one dtype, and all routed experts have one.
// INVALID_ARGUMENT or UNIMPLEMENTED names the tensors (the first few when many are missing).
absl::StatusOr<TensorReport> CheckTensors(const ModelConfig& config, const TensorSource& source);

}  // namespace comoe::checkpoint
