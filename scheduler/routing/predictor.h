// Forecasts of which experts a row will need, from what earlier rows needed. One interface, so that each can
// be replayed alone over a trace. Implementations are not thread-safe and allocate nothing after
// construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace comoe::routing {

class Predictor {
 public:
  virtual ~Predictor() = default;
  virtual absl::string_view name() const = 0;
  // What the rows of a step, [T, k] expert ids of `layer`, needed; once for each layer and step, in order of
  // time.
  virtual void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) = 0;
  // probabilities[e]: that one row of the next step needs expert e of `layer`; they sum to k at most. All 0
  // where nothing is known.
  virtual void Forecast(std::int32_t layer, absl::Span<float> probabilities) const = 0;
};

// The `n` likeliest experts whose probability is above 0, the likeliest first, the lower id among equals.
// Allocates nothing if `experts` has room for all.
void MostLikely(absl::Span<const float> probabilities, std::int32_t n, std::vector<std::int32_t>* experts);

}  // namespace comoe::routing
