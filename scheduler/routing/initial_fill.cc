#include "scheduler/routing/initial_fill.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace comoe::routing {

std::vector<base::ExpertKey> KeysByHotness(const TierShape& shape, absl::Span<const double> hot_counts) {
  std::vector<base::ExpertKey> keys;
  keys.reserve(static_cast<std::size_t>(shape.num_moe_experts()));
  for (std::int32_t expert = 0; expert < shape.num_experts; ++expert) {
    for (const std::int32_t layer : shape.moe_layers) {
      keys.push_back({layer, expert});
    }
  }
  if (!hot_counts.empty()) {
    std::stable_sort(keys.begin(), keys.end(), [&shape, hot_counts](base::ExpertKey a, base::ExpertKey b) {
      return hot_counts[shape.Index(a)] > hot_counts[shape.Index(b)];
    });
  }
  return keys;
}

void AppendWarmupOrders(const SlotTable& table, base::Tier tier, std::vector<api::FetchOrder>* orders) {
  for (std::int32_t slot = 0; slot < table.num_slots(); ++slot) {
    const std::optional<base::ExpertKey> key = table.KeyIn(slot);
    if (key.has_value()) {
      orders->push_back({*key, tier, slot, base::CopyReason::kWarmup});
    }
  }
}

}  // namespace comoe::routing
