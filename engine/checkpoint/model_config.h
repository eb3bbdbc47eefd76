// config.json of a Hugging Face checkpoint as typed, checked numbers. Architectures are data: a decoder layer
// is described by fields here, and nothing downstream asks for a model_type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tensor/dtype.h"

namespace comoe::checkpoint {

// Rotary frequencies (transformers' rope_type).
struct RopeConfig {
  enum class Type { kDefault, kLinear, kYarn, kLlama3 };
  Type type = Type::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  std::int64_t original_max_positions = 0;   // YaRN, Llama 3
  double beta_fast = 32.0, beta_slow = 1.0;  // YaRN
  bool truncate = true;                      // YaRN
  double attention_factor = 0.0;             // YaRN; 0: derived from factor, mscale, mscale_all_dim
  double mscale = 0.0, mscale_all_dim = 0.0;
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // Llama 3
};

enum class QkNorm { kNone, kPerHead, kFullWidth };

struct LayerConfig {
  bool sparse = true;              // MoE, or one dense FFN
  std::int64_t window_tokens = 0;  // sliding window; 0: full attention
};

struct ModelConfig {
  std::string model_type;
  std::int64_t vocab_size = 0;
  std::int64_t hidden = 0;          // D
  std::int64_t num_heads = 0;       // H
  std::int64_t num_kv_heads = 0;    // G
  std::int64_t head_dim = 0;        // P
  std::int64_t context_length = 0;  // max_position_embeddings
  double norm_epsilon = 1e-6;
  bool tied_embeddings = false;
  bool qkv_bias = false;     // q, k and v
  bool output_bias = false;  // o_proj (attention_bias of qwen3_moe and olmoe covers all four)
  QkNorm qk_norm = QkNorm::kNone;
  double clip_qkv = 0.0;                 // 0: off
  std::int64_t dense_intermediate = 0;   // F of dense layers
  std::int64_t expert_intermediate = 0;  // F of routed experts
  std::int64_t shared_intermediate = 0;  // F of the shared expert (with a sigmoid gate); 0: none
  std::int64_t num_experts = 0;          // E
  std::int64_t experts_per_token = 0;    // K
  bool normalize_weights = false;        // norm_topk_prob
  RopeConfig rope;
  std::vector<LayerConfig> layers;
  std::vector<std::int32_t> eos_token_ids;
  std::int32_t bos_token_id = -1;

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers.size()); }
};

// generation_config.json; absent fields keep these values.
struct GenerationDefaults {
  bool do_sample = false;
  double temperature = 1.0;
  double top_p = 1.0;
  std::int32_t top_k = 0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::int32_t> eos_token_ids;
};

// `name` is what messages call the file. INVALID_ARGUMENT names the field and what is wrong with it,
// UNIMPLEMENTED an architecture or option that is not supported, with what is.
absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view name);
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view json, absl::string_view name);
// config.json again, for a config that was changed (widened): the document `config` was parsed from, with
// hidden_size, head_dim, the experts' intermediate size and rms_norm_eps set to those of `config`.
absl::StatusOr<std::string> WithFields(absl::string_view json, const ModelConfig& config);

}  // namespace comoe::checkpoint
