// Grouped-query attention of one decoder layer: project, norm, rotate, append to the KV blocks, attend,
// project back.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/step_context.h"
#include "engine/model/weights.h"

namespace comoe::model {

// projected = attention(norm(residual)), which QueueFfn adds to the residual. Uses normed, qkv and attention
// of the workspace too. Does not allocate.
absl::Status RunAttention(const StepContext& context, std::int64_t layer, const LayerWeights& weights);

}  // namespace comoe::model
