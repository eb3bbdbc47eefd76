// What scheduler and server may know of a model. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/sampling_params.h"
#include "engine/base/ids.h"

namespace comoe::api {

// A kind of state that a model keeps per sequence. Several layers share a group; a span of a StepPlan names,
// per group, the blocks or the slot where that state lies.
struct CacheGroup {
  enum class Kind {
    kFullKv,    // keys and values of every position, in blocks
    kWindowKv,  // of the last `window_tokens` positions, in blocks
    kLatentKv,  // compressed keys and values, in blocks
    kRecurrent  // a state of fixed size, in a slot
  };
  Kind kind = Kind::kFullKv;
  std::int32_t num_layers = 0;
  std::int64_t window_tokens = 0;     // kWindowKv
  std::int32_t block_tokens = 0;      // positions a block holds; 0 for kRecurrent
  std::uint64_t bytes_per_block = 0;  // over all layers of the group; of a slot for kRecurrent
};

struct ModelInfo {
  std::string name;                 // how clients call it
  std::string architecture;         // config.json's model_type
  std::string weight_dtype;         // "BF16", "F16", "F32"
  std::int64_t context_length = 0;  // positions the model was made for
  std::int32_t vocab_size = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_moe_layers = 0;
  std::int32_t num_experts = 0;  // routed experts of a MoE layer
  std::int32_t num_experts_per_token = 0;
  std::uint64_t total_parameters = 0;
  std::uint64_t active_parameters = 0;  // those one token uses
  std::uint64_t expert_bytes = 0;       // of one blob
  std::uint64_t all_expert_bytes = 0;
  std::uint64_t resident_bytes = 0;  // weights outside the experts
  std::vector<base::TokenId> eos_token_ids;
  std::int32_t bos_token_id = -1;  // -1: none
  std::vector<CacheGroup> cache_groups;
  SamplingParams default_sampling;  // from generation_config.json
};

}  // namespace comoe::api
