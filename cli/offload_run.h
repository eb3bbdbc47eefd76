// Runs one engine over given texts, and says what serving its experts has cost: the same StepPlans whatever
// the policy.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/engine.h"
#include "engine/api/offload.h"
#include "engine/base/ids.h"

namespace comoe::cli {

struct OffloadRunOptions {
  std::int64_t batch = 1;
  std::int64_t warmup_steps = 64;
  std::int64_t steps = 512;
  std::int64_t prompt = 64;  // tokens of the prompts whose first token is timed
};

struct OffloadRun {
  api::OffloadTotals totals;         // of the timed steps
  std::vector<double> step_seconds;  // one for each of them, on the device's clock
  std::int64_t tokens = 0;           // of these steps
  double real_seconds = 0.0;         // that they took, whatever the device's clock
  double first_token_cold = 0.0;     // seconds: a prompt before anything else, and after the timed steps
  double first_token_warm = 0.0;
  std::vector<float> last_logits;  // of the last timed step's rows: [B, V]; policies must agree to the bit

  double seconds() const { return totals.wall; }
  double tokens_per_second() const {
    return totals.wall > 0.0 ? static_cast<double>(tokens) / totals.wall : 0.0;
  }
};

// What `after` has that `before` had not. Sizes and places are those of `after`.
api::OffloadTotals Difference(const api::OffloadTotals& after, const api::OffloadTotals& before);

// `progress(done, total)` in steps. INVALID_ARGUMENT when the texts are too few or too short, or the engine
// too small.
absl::StatusOr<OffloadRun> RunOffload(api::Engine& engine,
                                      const std::vector<std::vector<base::TokenId>>& texts,
                                      const OffloadRunOptions& options,
                                      absl::FunctionRef<void(std::uint64_t, std::uint64_t)> progress);

}  // namespace comoe::cli
