#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/sampling/sampler.h"

namespace comoe::sampling {
namespace {

// The first `count` of `logits` in the order of Before.
void SelectTop(absl::Span<const float> logits, std::size_t count, std::vector<Candidate>& top) {
  top.clear();
  for (std::size_t i = 0; i < logits.size() && count > 0; ++i) {
    if (top.size() == count) {
      if (!(logits[i] > top.front().logit)) {  // an equal logit has the higher id, and loses
        continue;
      }
      std::pop_heap(top.begin(), top.end(), Before);
      top.pop_back();
    }
    top.push_back({logits[i], static_cast<base::TokenId>(i)});
    std::push_heap(top.begin(), top.end(), Before);
  }
  std::sort(top.begin(), top.end(), Before);
}

}  // namespace

absl::StatusOr<api::LogprobRow> Score(absl::Span<const float> logits, base::TokenId id, std::int32_t num_top,
                                      SamplerScratch& scratch) {
  const HighestLogit highest = FindHighest(logits);
  COMOE_RETURN_IF_ERROR(CheckHighest(highest));
  FillWeights(logits, highest.value, 1.0F, scratch.weights);
  const double log_mass = std::log(Sum(scratch.weights));  // above the highest
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(highest.value) - log_mass);
  };
  api::LogprobRow row;
  row.logprob = logprob(logits[static_cast<std::size_t>(id)]);
  SelectTop(logits, static_cast<std::size_t>(num_top), scratch.candidates);
  row.top.reserve(scratch.candidates.size());
  for (const Candidate& candidate : scratch.candidates) {
    row.top.push_back({candidate.id, logprob(candidate.logit)});
  }
  return row;
}

}  // namespace comoe::sampling
