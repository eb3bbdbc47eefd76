// What a policy must know of the model and of the tiers it decides about. Numbers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace comoe::routing {

struct TierShape {
  std::int32_t num_layers = 0;           // all decoder layers, dense ones too
  std::vector<std::int32_t> moe_layers;  // those with routed experts, ascending
  std::int32_t num_experts = 0;          // routed experts of a MoE layer
  std::int32_t experts_per_token = 0;    // k
  std::int32_t device_slots = 0;         // without the staging slots, which are the engine's own
  std::int32_t pinned_slots = 0;
  // An expert lies in one tier only. Otherwise the device's are copies and the pinned tier's may be.
  bool exclusive = false;
  // Whatever is not on the device is in page-locked memory: a director then gives no order for that tier.
  bool pinned_holds_all = true;

  std::int32_t num_moe_experts() const { return static_cast<std::int32_t>(moe_layers.size()) * num_experts; }
  // Index of a key in a dense array [num_layers, num_experts].
  std::size_t Index(base::ExpertKey key) const {
    return static_cast<std::size_t>(key.layer) * static_cast<std::size_t>(num_experts) +
           static_cast<std::size_t>(key.expert);
  }
  std::size_t num_keys() const {
    return static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(num_experts);
  }
};

}  // namespace comoe::routing
