// Forecasts of what each row of a step will need in the layers to come, from its token, from what it needed
// in layers before and from routers applied early. One interface, so that each can be replayed alone, and so
// that a mix can be put together of any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"

namespace comoe::routing {

// Of a step, a predictor sees this many rows at most: with more, the batch needs nearly every expert anyhow.
inline constexpr std::int32_t kMaxForecastRows = 64;

// Usage: BeginStep; then for each MoE layer, ascending, Observe and ObserveLookahead; Forecast at any time
// between these for a layer that was not observed in this step yet. T is that of BeginStep throughout.
// Implementations are not thread-safe and allocate nothing after construction.
class RowPredictor {
 public:
  virtual ~RowPredictor() = default;
  virtual absl::string_view name() const = 0;
  // The rows' token ids, [T], at most kMaxForecastRows; negative: not known.
  virtual void BeginStep(absl::Span<const base::TokenId> tokens) = 0;
  // What the rows needed in `layer`, [T, k] expert ids, best first.
  virtual void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) = 0;
  // The router of `target`, a later MoE layer, on the rows' input to the router of `layer`: [T, num_experts].
  virtual void ObserveLookahead(std::int32_t /*layer*/, std::int32_t /*target*/,
                                absl::Span<const float> /*logits*/) {}
  // probabilities[t, e], [T, num_experts]: that row t needs expert e of `target`. All 0 where nothing is
  // known.
  virtual void Forecast(std::int32_t target, absl::Span<float> probabilities) = 0;
  // The same for tokens that are in no step yet, from their ids alone.
  virtual void ForecastTokens(absl::Span<const base::TokenId> /*tokens*/, std::int32_t /*target*/,
                              absl::Span<float> probabilities) const {
    std::fill(probabilities.begin(), probabilities.end(), 0.0F);
  }

  // What was learnt, as bytes of this machine, to be given to a predictor of the same kind and shape. Restore
  // takes them off the front; false, and nothing changed, if they are not what Append wrote.
  virtual void Append(std::vector<std::uint8_t>* /*bytes*/) const {}
  virtual bool Restore(absl::Span<const std::uint8_t>* /*bytes*/) { return true; }
};

}  // namespace comoe::routing
