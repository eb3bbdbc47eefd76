#include "engine/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"

namespace comoe::sampling {
namespace {

// Independent accumulators: the compiler vectorises over them, and the order of additions stays fixed.
constexpr std::size_t kLanes = 8;
// Up to here a heap of k finds the top k in one scan; above, selecting in a copy is cheaper.
constexpr std::size_t kHeapTopK = 1024;
// First run that top_p sorts; it doubles until the mass is reached.
constexpr std::size_t kFirstSortedRun = 64;

// exp(x) for x <= 0, relative error under 3e-7 (Taylor to degree 7 after taking out a power of two); 0 below
// -87, where the result would leave the normal floats. Own code rather than libm's: it vectorises, and libm's
// last bit depends on the CPU it dispatches to, which would make draws differ between machines.
inline float ExpNonPositive(float x) {
  constexpr float kLowest = -87.0F;
  constexpr float kLeast = 1.65e-38F;  // just above exp(kLowest)
  constexpr float kRound =
      12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const float clamped = x > kLowest ? x : kLowest;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts, the first short enough for n * it to be exact.
  const float r = (clamped - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const float scale = std::bit_cast<float>((exponent + 127) << 23);
  const float result = p * scale;
  return result > kLeast ? result : 0.0F;  // a test of x would be merged with the first one into a branch
}

absl::StatusOr<float> HighestLogit(absl::Span<const float> logits) {
  std::array<float, kLanes> highest;
  highest.fill(-std::numeric_limits<float>::infinity());
  std::array<int, kLanes> nan = {};
  const auto visit = [&](std::size_t lane, float x) {
    highest[lane] = x > highest[lane] ? x : highest[lane];
    nan[lane] |= static_cast<int>(x != x);
  };
  const std::size_t whole = logits.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      visit(lane, logits[i + lane]);
    }
  }
  for (std::size_t i = whole; i < logits.size(); ++i) {
    visit(i - whole, logits[i]);
  }
  if (std::any_of(nan.begin(), nan.end(), [](int flag) { return flag != 0; })) {
    return absl::InternalError("logits contain NaN");
  }
  const float result = *std::max_element(highest.begin(), highest.end());
  if (result == std::numeric_limits<float>::infinity()) {
    return absl::InternalError("logits contain +infinity");
  }
  if (result == -std::numeric_limits<float>::infinity()) {
    return absl::InternalError(logits.empty() ? "there are no logits" : "every logit is -infinity");
  }
  return result;
}

void FillWeights(absl::Span<const float> logits, float highest, float inverse_temperature,
                 std::vector<float>& weights) {
  weights.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = ExpNonPositive((logits[i] - highest) * inverse_temperature);
  }
}

double Sum(const std::vector<float>& weights) {
  std::array<double, kLanes> sums = {};
  const std::size_t whole = weights.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(weights[i + lane]);
    }
  }
  for (std::size_t i = whole; i < weights.size(); ++i) {
    sums[i - whole] += static_cast<double>(weights[i]);
  }
  double total = 0.0;
  for (const double sum : sums) {
    total += sum;
  }
  return total;
}

// Most probable first. By logit, not by weight: two logits may share a rounded weight.
bool Before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

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

base::TokenId DrawToken(absl::Span<const float> logits, const api::SamplingParams& params, double unit,
                        SamplerScratch& scratch) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  const bool top_k = params.top_k > 0 && params.top_k < vocab;
  if (!top_k && params.top_p >= 1.0F && params.min_p <= 0.0F) {
    const auto weight_at = [&](std::size_t i) { return static_cast<double>(scratch.weights[i]); };
    return static_cast<base::TokenId>(Draw(logits.size(), Sum(scratch.weights), unit, weight_at));
  }
  SelectCandidates(logits, params, scratch);
  if (params.top_p < 1.0F) {
    KeepNucleus(static_cast<double>(params.top_p), scratch);
  }
  const auto weight_at = [&](std::size_t i) { return WeightOf(scratch, scratch.candidates[i]); };
  return scratch.candidates[Draw(scratch.candidates.size(), CandidateMass(scratch), unit, weight_at)].id;
}

}  // namespace

absl::StatusOr<Sampled> Sample(absl::Span<const float> logits, const api::SamplingParams& params,
                               std::uint64_t position, SamplerScratch& scratch) {
  COMOE_ASSIGN_OR_RETURN(const float highest, HighestLogit(logits));
  Sampled sampled;
  FillWeights(logits, highest, 1.0F, scratch.weights);
  const double log_mass = std::log(Sum(scratch.weights));
  if (params.greedy()) {
    const auto first = std::find(logits.begin(), logits.end(), highest);
    sampled.id = static_cast<base::TokenId>(first - logits.begin());
  } else {
    if (params.temperature != 1.0F) {
      FillWeights(logits, highest, 1.0F / params.temperature, scratch.weights);
    }
    sampled.id = DrawToken(logits, params, base::RandomUnit(params.seed, position), scratch);
  }
  const auto logit = static_cast<double>(logits[static_cast<std::size_t>(sampled.id)]);
  sampled.logprob = static_cast<float>(logit - static_cast<double>(highest) - log_mass);
  return sampled;
}

}  // namespace comoe::sampling
