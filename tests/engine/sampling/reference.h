// What sampling shall do, the obvious way: in double, with maps and whole sorts. And logits to do it to.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/api/sampling_params.h"
#include "engine/api/step_plan.h"

namespace comoe::sampling {

// Logits like a model's: a few likely tokens, a long tail.
std::vector<float> RandomLogits(std::size_t vocab, std::uint64_t seed);

// After bias, masks and penalties. Masks that leave nothing are ignored.
std::vector<double> ReferenceAdjusted(const std::vector<float>& logits, const api::SamplingParams& params,
                                      const api::SampleContext& context);
// The tokens min_p, top_k and top_p leave, most probable first. Not for greedy parameters.
std::vector<std::size_t> ReferenceKept(const std::vector<double>& adjusted,
                                       const api::SamplingParams& params);
// What each token's probability shall be. Not for greedy parameters.
std::vector<double> ReferenceDistribution(const std::vector<float>& logits, const api::SamplingParams& params,
                                          const api::SampleContext& context);
std::vector<double> LogSoftmax(const std::vector<float>& logits);

}  // namespace comoe::sampling
