// Draws the next token of one row from its logits.
//
// Order of the filters, each over what the one before left (vLLM's order since its V1 engine):
//   temperature  logits / temperature; below 1e-5 the draw is greedy and nothing else applies
//   min_p        keeps tokens at least min_p times as probable as the most probable one
//   top_k        keeps exactly k tokens; among equal logits the lower id wins, so top_k = 1 is greedy
//                (vLLM keeps every token that ties with the k-th)
//   top_p        keeps the shortest run, most probable first, whose share of what is left reaches top_p; the
//                token that crosses it is kept, so at least one is
// The draw inverts the cumulative distribution at base::RandomUnit(seed, position): by ascending id, or most
// probable first where top_k or top_p took part. It is a pure function of its arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/base/ids.h"

namespace comoe::sampling {

struct Sampled {
  base::TokenId id = 0;
  float logprob = 0.0F;  // of `id` under the unmodified logits: no temperature, no filter; natural logarithm
};

struct Candidate {
  float logit = 0.0F;
  base::TokenId id = 0;
};

// What Sample works in, to be kept between calls: it grows to the vocabulary once, then nothing is allocated.
// Thread-compatible: one call at a time.
struct SamplerScratch {
  std::vector<float> weights;         // [vocab] exp((logit - highest) / temperature)
  std::vector<Candidate> candidates;  // [vocab] at most
};

// `logits`: [vocab], host, at least one; -infinity masks a token. `params` as ValidateSamplingParams wants
// them. `position`: of the token drawn in its sequence; a different one for each draw of a seed. INTERNAL:
// logits that are empty or contain NaN or +infinity, or that mask every token.
absl::StatusOr<Sampled> Sample(absl::Span<const float> logits, const api::SamplingParams& params,
                               std::uint64_t position, SamplerScratch& scratch);

}  // namespace comoe::sampling
