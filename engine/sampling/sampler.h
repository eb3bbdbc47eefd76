// Draws the next token of one row from its logits.
//
// Order, each over what the one before left (vLLM's order since its V1 engine):
//   bias, masks, penalties  see adjust.h; they apply to greedy draws too. Masks that would leave no token are
//                           ignored, all of them: what is masked would have ended the completion, and now it
//                           may
//   temperature             logits / temperature; below 1e-5 the draw is greedy and nothing below applies
//   min_p                   keeps tokens at least min_p times as probable as the most probable one
//   top_k                   keeps exactly k tokens; among equal logits the lower id wins, so top_k = 1 is
//   greedy
//                           (vLLM keeps every token that ties with the k-th)
//   top_p                   keeps the shortest run, most probable first, whose share of what is left reaches
//                           top_p; the token that crosses it is kept, so at least one is
// The draw inverts the cumulative distribution at base::RandomUnit(seed, position): by ascending id, or most
// probable first where top_k or top_p took part. It is a pure function of its arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/sampling_params.h"
#include "engine/api/step_plan.h"
#include "engine/base/ids.h"
#include "engine/sampling/adjust.h"
#include "engine/sampling/logits.h"

namespace comoe::sampling {

// What the functions below work in, to be kept between calls: it grows to the vocabulary once, then nothing
// is allocated. Thread-compatible: one call at a time.
struct SamplerScratch {
  AdjustScratch adjust;        // untouched unless something adjusts
  std::vector<float> weights;  // [vocab] exp((logit - highest) / temperature); untouched by greedy draws
  std::vector<Candidate> candidates;  // [vocab] at most
  std::vector<float> best_weights;    // [kMostBest] at most, of SampleFromBest
};

// `logits`: [vocab], host, at least one; -infinity masks a token. `params` as ValidateSamplingParams wants
// them, ids of `context` below vocab. `position`: of the token drawn in its sequence; a different one for
// each draw of a seed. A greedy draw that nothing adjusts costs one pass. INTERNAL: logits that are empty or
// contain NaN or +infinity, or that mask every token.
absl::StatusOr<base::TokenId> Sample(absl::Span<const float> logits, const api::SamplingParams& params,
                                     const api::SampleContext& context, std::uint64_t position,
                                     SamplerScratch& scratch);

inline constexpr std::int32_t kMostBest = 64;
// How many of the highest logits give the token that all of `vocab` would, to the bit: then SampleFromBest
// will do. 0: all are needed, because something adjusts them, or because more than kMostBest may be drawn.
// With min_p too: rounded weights of neighbouring logits may be out of order, so what it keeps is not always
// a run of the highest.
std::int32_t BestNeeded(const api::SamplingParams& params, const api::SampleContext& context,
                        std::int64_t vocab);

// The highest logits of a row, as kernels::TopLogits orders them.
struct BestLogits {
  absl::Span<const base::TokenId> ids;
  absl::Span<const float> values;
};
// What Sample gives for the whole row, errors included. `best`: as many as BestNeeded says, or more.
absl::StatusOr<base::TokenId> SampleFromBest(const BestLogits& best, std::int64_t vocab,
                                             const api::SamplingParams& params, std::uint64_t position,
                                             SamplerScratch& scratch);

// log softmax(logits)[id] and the `num_top` highest of all, natural logarithm, of the logits as given. Errors
// as Sample's; a token of logit -infinity has log-probability -infinity.
absl::StatusOr<api::LogprobRow> Score(absl::Span<const float> logits, base::TokenId id, std::int32_t num_top,
                                      SamplerScratch& scratch);

}  // namespace comoe::sampling
