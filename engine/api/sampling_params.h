// How the next token is chosen from logits. Values, already validated by whoever made them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/ids.h"

namespace comoe::api {

inline constexpr std::size_t kMaxLogitBiases = 1024;

struct LogitBias {
  base::TokenId id = 0;
  float bias = 0.0F;  // [-100, 100], added to the logit
};

struct SamplingParams {
  float temperature = 1.0F;  // [0, 2]; below 1e-5 is greedy: the highest logit, the lowest id among equals
  float top_p = 1.0F;        // (0, 1]; 1 is off
  std::int32_t top_k = 0;    // 0 is off
  float min_p = 0.0F;        // [0, 1]; 0 is off
  // Of tokens that the context has already; they apply to greedy draws too, before the temperature.
  float repetition_penalty = 1.0F;  // (0, 2]; 1 is off: logits > 0 of prompt and output tokens are divided by
                                    // it, others multiplied
  float presence_penalty = 0.0F;    // [-2, 2]; 0 is off: taken from the logit of each token of the output
  float frequency_penalty = 0.0F;   // [-2, 2]; 0 is off: the same, times how often the output has it
  std::vector<LogitBias> logit_bias;  // at most kMaxLogitBiases, ascending ids, each once
  std::uint64_t seed = 0;             // the same seed gives the same tokens, whatever else runs

  bool greedy() const { return temperature < 1e-5F; }
  // A draw depends on the tokens before it.
  bool penalises() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }
};

// INVALID_ARGUMENT naming the field and its range; NaN fails every range.
absl::Status ValidateSamplingParams(const SamplingParams& params, std::int32_t vocab_size);

}  // namespace comoe::api
