#include "engine/sampling/adjust.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace comoe::sampling {
namespace {

constexpr std::int32_t kUnseen = -1;

// A tiny repetition penalty may lead out of the floats; a client's number makes no infinity.
void Replace(float& logit, double value) {
  if (std::isfinite(logit)) {
    constexpr double kMost = std::numeric_limits<float>::max();
    logit = static_cast<float>(std::clamp(value, -kMost, kMost));
  }
}

// Fills `seen` and, for those tokens, `uses`.
void CountUses(const api::SampleContext& context, std::size_t vocab, AdjustScratch& scratch) {
  if (scratch.uses.size() < vocab) {
    scratch.uses.resize(vocab, kUnseen);
    scratch.seen.reserve(vocab);
  }
  for (std::size_t i = 0; i < context.tokens.size(); ++i) {
    std::int32_t& uses = scratch.uses[static_cast<std::size_t>(context.tokens[i])];
    if (uses == kUnseen) {
      uses = 0;
      scratch.seen.push_back(context.tokens[i]);
    }
    uses += static_cast<std::int64_t>(i) >= context.num_prompt ? 1 : 0;
  }
}

double Penalised(double logit, std::int32_t uses, const api::SamplingParams& params) {
  const auto repetition = static_cast<double>(params.repetition_penalty);
  logit = logit > 0.0 ? logit / repetition : logit * repetition;
  if (uses > 0) {
    logit -= uses * static_cast<double>(params.frequency_penalty);
    logit -= static_cast<double>(params.presence_penalty);
  }
  return logit;
}

}  // namespace

absl::Span<const float> Adjust(absl::Span<const float> logits, const api::SamplingParams& params,
                               const api::SampleContext& context, MaskUse masks, AdjustScratch& scratch) {
  scratch.logits.assign(logits.begin(), logits.end());
  const auto at = [&scratch](base::TokenId id) -> float& {
    return scratch.logits[static_cast<std::size_t>(id)];
  };
  for (const api::LogitBias& bias : params.logit_bias) {
    Replace(at(bias.id), static_cast<double>(at(bias.id)) + static_cast<double>(bias.bias));
  }
  if (masks == MaskUse::kApply) {
    for (const base::TokenId id : context.masked) {
      if (std::isfinite(at(id))) {  // NaN and +infinity stay, to be found
        at(id) = -std::numeric_limits<float>::infinity();
      }
    }
  }
  if (params.penalises()) {
    CountUses(context, logits.size(), scratch);
    for (const base::TokenId id : scratch.seen) {
      std::int32_t& uses = scratch.uses[static_cast<std::size_t>(id)];
      Replace(at(id), Penalised(static_cast<double>(at(id)), uses, params));
      uses = kUnseen;
    }
    scratch.seen.clear();
  }
  return scratch.logits;
}

}  // namespace comoe::sampling
