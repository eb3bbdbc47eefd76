// The two spellings of rotary settings in config.json as one RopeConfig.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/checkpoint/json_fields.h"
#include "engine/checkpoint/model_config.h"

namespace comoe::checkpoint {

// Reads `rope_scaling` (older: type or rope_type beside a top-level rope_theta) or `rope_parameters`; a
// rope_scaling that is set and not empty wins, as in transformers.
absl::StatusOr<RopeConfig> ParseRopeConfig(const JsonFields& config, std::int64_t context_length,
                                           double default_theta);

}  // namespace comoe::checkpoint
