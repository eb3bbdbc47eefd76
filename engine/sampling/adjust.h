// What changes logits before anything is drawn from them: bias, masks, penalties.
//
// In this order, which is vLLM's since its V1 engine (bias and masks commute):
//   logit_bias          added to the logit
//   masked              -infinity
//   repetition_penalty  for each token that prompt or output have: a logit > 0 is divided by it, others are
//                       multiplied with it
//   frequency_penalty   times how often the output has the token, taken from its logit; the prompt does not
//   count presence_penalty    taken from the logit of each token that the output has
// A finite logit stays finite, whatever the parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"

namespace comoe::sampling {

// Kept between calls: it grows to the vocabulary once, then nothing is allocated.
struct AdjustScratch {
  std::vector<float> logits;       // [vocab]
  std::vector<std::int32_t> uses;  // [vocab] of a token in the output; between calls all are kUnseen
  std::vector<base::TokenId> seen;
};

enum class MaskUse { kApply, kIgnore };

// False: Adjust would give what it got.
inline bool Adjusts(const api::SamplingParams& params, const api::SampleContext& context) {
  return !params.logit_bias.empty() || !context.masked.empty() || params.penalises();
}
// `logits`: [vocab]; every id of `params` and `context` is below vocab. Returns scratch.logits. Costs a copy
// of the logits and a pass over the context's tokens.
absl::Span<const float> Adjust(absl::Span<const float> logits, const api::SamplingParams& params,
                               const api::SampleContext& context, MaskUse masks, AdjustScratch& scratch);

}  // namespace comoe::sampling
