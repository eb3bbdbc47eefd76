#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"

namespace comoe::sampling {
namespace {

// Up to here a heap of k finds the top k in one scan; above, selecting in a copy is cheaper.
constexpr std::size_t kHeapTopK = 1024;
// First run that top_p sorts; it doubles until the mass is reached.
constexpr std::size_t kFirstSortedRun = 64;

double WeightOf(const SamplerScratch& scratch, const Candidate& candidate) {
  return static_cast<double>(scratch.weights[static_cast<std::size_t>(candidate.id)]);
}

double CandidateMass(const SamplerScratch& scratch) {
  double mass = 0.0;
  for (const Candidate& candidate : scratch.candidates) {
    mass += WeightOf(scratch, candidate);
  }
  return mass;
}

// The tokens min_p and top_k leave: by ascending id, or most probable first if top_k took part.
void SelectCandidates(absl::Span<const float> logits, const api::SamplingParams& params,
                      SamplerScratch& scratch) {
  std::vector<Candidate>& kept = scratch.candidates;
  kept.clear();
  kept.reserve(logits.size());
  // The most probable token weighs exactly 1. Masked tokens weigh 0 and are never candidates.
  const float least = std::max(params.min_p, std::numeric_limits<float>::min());
  const std::size_t top_k = params.top_k > 0 ? static_cast<std::size_t>(params.top_k) : logits.size();
  if (top_k >= logits.size() || top_k > kHeapTopK) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (scratch.weights[i] >= least) {
        kept.push_back({logits[i], static_cast<base::TokenId>(i)});
      }
    }
    if (kept.size() > top_k) {
      const auto end = kept.begin() + static_cast<std::ptrdiff_t>(top_k);
      std::nth_element(kept.begin(), end, kept.end(), Before);
      kept.resize(top_k);
      std::sort(kept.begin(), kept.end(), Before);
    }
    return;
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (kept.size() < top_k) {
      if (scratch.weights[i] >= least) {
        kept.push_back({logits[i], static_cast<base::TokenId>(i)});
        std::push_heap(kept.begin(), kept.end(), Before);
      }
    } else if (logits[i] > kept.front().logit) {  // an equal logit has the higher id, and loses
      std::pop_heap(kept.begin(), kept.end(), Before);
      kept.back() = {logits[i], static_cast<base::TokenId>(i)};
      std::push_heap(kept.begin(), kept.end(), Before);
    }
  }
  std::sort(kept.begin(), kept.end(), Before);
}

// Cuts the candidates to the shortest run, most probable first, that holds `top_p` of their mass.
void KeepNucleus(double top_p, SamplerScratch& scratch) {
  std::vector<Candidate>& kept = scratch.candidates;
  const double mass = CandidateMass(scratch);
  // Tokens under this weight hold less than 1 - top_p of the mass all together, so none of them is in the
  // run: most of a vocabulary leaves here, unsorted. The margin covers rounding.
  const double least = (1.0 - top_p) * mass / static_cast<double>(kept.size()) * (1.0 - 1e-6);
  kept.erase(std::remove_if(kept.begin(), kept.end(),
                            [&](const Candidate& candidate) { return WeightOf(scratch, candidate) < least; }),
             kept.end());
  std::size_t sorted = 0;
  std::size_t run = kFirstSortedRun;
  double reached = 0.0;
  while (sorted < kept.size()) {
    const std::size_t end = std::min(sorted + run, kept.size());
    const auto at = [&kept](std::size_t i) { return kept.begin() + static_cast<std::ptrdiff_t>(i); };
    if (end < kept.size()) {
      std::nth_element(at(sorted), at(end), kept.end(), Before);
    }
    std::sort(at(sorted), at(end), Before);
    for (; sorted < end; ++sorted) {
      reached += WeightOf(scratch, kept[sorted]);
      if (reached >= top_p * mass) {
        kept.resize(sorted + 1);
        return;
      }
    }
    run *= 2;
  }
}

// Inverts the cumulative distribution at `unit` in [0, 1). Things of weight 0 are never drawn.
template <typename WeightAt>
std::size_t Draw(std::size_t count, double mass, double unit, const WeightAt& weight_at) {
  const double target = unit * mass;
  double reached = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double weight = weight_at(i);
    reached += weight;
    if (target < reached) {
      return i;
    }
    if (weight > 0.0) {
      last = i;
    }
  }
  return last;  // rounding left the target at the very end
}

// From the candidates that top_k and min_p left.
base::TokenId DrawCandidate(const api::SamplingParams& params, double unit, SamplerScratch& scratch) {
  if (params.top_p < 1.0F) {
    KeepNucleus(static_cast<double>(params.top_p), scratch);
  }
  const auto weight_at = [&](std::size_t i) { return WeightOf(scratch, scratch.candidates[i]); };
  return scratch.candidates[Draw(scratch.candidates.size(), CandidateMass(scratch), unit, weight_at)].id;
}

base::TokenId DrawToken(absl::Span<const float> logits, const api::SamplingParams& params, double unit,
                        SamplerScratch& scratch) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  const bool top_k = params.top_k > 0 && params.top_k < vocab;
  if (!top_k && params.top_p >= 1.0F && params.min_p <= 0.0F) {
    const auto weight_at = [&](std::size_t i) { return static_cast<double>(scratch.weights[i]); };
    return static_cast<base::TokenId>(Draw(logits.size(), Sum(scratch.weights), unit, weight_at));
  }
  SelectCandidates(logits, params, scratch);
  return DrawCandidate(params, unit, scratch);
}

}  // namespace

absl::StatusOr<base::TokenId> Sample(absl::Span<const float> logits, const api::SamplingParams& params,
                                     const api::SampleContext& context, std::uint64_t position,
                                     SamplerScratch& scratch) {
  HighestLogit highest;
  if (Adjusts(params, context)) {
    const absl::Span<const float> unmodified = logits;
    logits = Adjust(unmodified, params, context, MaskUse::kApply, scratch.adjust);
    highest = FindHighest(logits);
    if (highest.value == -std::numeric_limits<float>::infinity() && !context.masked.empty()) {
      logits = Adjust(unmodified, params, context, MaskUse::kIgnore, scratch.adjust);
      highest = FindHighest(logits);
    }
  } else {
    highest = FindHighest(logits);
  }
  COMOE_RETURN_IF_ERROR(CheckHighest(highest));
  if (params.greedy()) {
    return static_cast<base::TokenId>(highest.index);
  }
  FillWeights(logits, highest.value, 1.0F / params.temperature, scratch.weights);
  return DrawToken(logits, params, base::RandomUnit(params.seed, position), scratch);
}

std::int32_t BestNeeded(const api::SamplingParams& params, const api::SampleContext& context,
                        std::int64_t vocab) {
  if (Adjusts(params, context)) {
    return 0;
  }
  if (params.greedy()) {
    return 1;
  }
  const bool few = params.top_k > 0 && params.top_k <= kMostBest && params.top_k < vocab;
  return few && params.min_p <= 0.0F ? params.top_k : 0;
}

absl::StatusOr<base::TokenId> SampleFromBest(const BestLogits& best, std::int64_t vocab,
                                             const api::SamplingParams& params, std::uint64_t position,
                                             SamplerScratch& scratch) {
  if (best.ids.empty()) {
    return CheckHighest(FindHighest({}));
  }
  const float highest = best.values.front();
  COMOE_RETURN_IF_ERROR(CheckHighest({highest, 0, std::isnan(highest)}));
  if (params.greedy()) {
    return best.ids.front();
  }
  const auto kept = std::min(static_cast<std::size_t>(params.top_k), best.ids.size());
  FillWeights(best.values.first(kept), highest, 1.0F / params.temperature, scratch.best_weights);
  scratch.weights.resize(std::max(scratch.weights.size(), static_cast<std::size_t>(vocab)));
  scratch.candidates.clear();
  for (std::size_t i = 0; i < kept && scratch.best_weights[i] > 0.0F; ++i) {
    scratch.weights[static_cast<std::size_t>(best.ids[i])] = scratch.best_weights[i];
    scratch.candidates.push_back({best.values[i], best.ids[i]});
  }
  return DrawCandidate(params, base::RandomUnit(params.seed, position), scratch);
}

}  // namespace comoe::sampling
