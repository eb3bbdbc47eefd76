// What drawing and scoring share: passes over one row of logits. The same result on every CPU. Pure
// functions, but for what they write into.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"

namespace comoe::sampling {

struct Candidate {
  float logit = 0.0F;
  base::TokenId id = 0;
};
// Most probable first, the lower id among equals. By logit, not by weight: two logits may share a rounded
// weight.
inline bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

struct HighestLogit {
  float value = 0.0F;     // -infinity if there is none above it
  std::size_t index = 0;  // the lowest that has it
  bool any_nan = false;
};
HighestLogit FindHighest(absl::Span<const float> logits);
// INTERNAL: NaN, +infinity, or nothing but -infinity: no distribution.
absl::Status CheckHighest(const HighestLogit& highest);

// weights[i] = exp((logits[i] - highest) * inverse_temperature), relative error under 3e-7 at a factor of 1;
// 0 below e^-87.
void FillWeights(absl::Span<const float> logits, float highest, float inverse_temperature,
                 std::vector<float>& weights);
double Sum(absl::Span<const float> weights);  // in a fixed order

}  // namespace comoe::sampling
