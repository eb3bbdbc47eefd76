// How the next token is chosen from logits. Values, already validated by whoever made them.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace comoe::api {

struct SamplingParams {
  float temperature = 1.0F;  // [0, 2]; below 1e-5 is greedy: the highest logit, the lowest id among equals
  float top_p = 1.0F;        // (0, 1]; 1 is off
  std::int32_t top_k = 0;    // 0 is off
  float min_p = 0.0F;        // [0, 1]; 0 is off
  std::uint64_t seed = 0;    // the same seed gives the same tokens, whatever else runs

  bool greedy() const { return temperature < 1e-5F; }
};

// INVALID_ARGUMENT naming the field and its range; NaN fails every range.
absl::Status ValidateSamplingParams(const SamplingParams& params, std::int32_t vocab_size);

}  // namespace comoe::api
