// The hub's memory as bytes: what it has learnt of a model's routing, for the next start. Little-endian, and
// of no use to another model.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

struct HubState {
  std::vector<float> counts;               // [num_layers, num_experts]: decayed uses
  std::vector<base::ExpertKey> on_device;  // most worth keeping first
  std::vector<std::uint8_t> predictor;     // RowPredictor::Append
};

// `checkpoint`: a number that names the model's weights.
std::vector<std::uint8_t> EncodeHubState(const TierShape& shape, std::uint64_t checkpoint,
                                         const HubState& state);
// INVALID_ARGUMENT: not a hub state, or of another version. FAILED_PRECONDITION: of another model. DATA_LOSS:
// cut short or changed since.
absl::StatusOr<HubState> DecodeHubState(const TierShape& shape, std::uint64_t checkpoint,
                                        absl::Span<const std::uint8_t> bytes);

}  // namespace comoe::routing
