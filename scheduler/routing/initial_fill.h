// What lies where at start.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/base/ids.h"
#include "engine/base/stage.h"
#include "scheduler/routing/slot_table.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// Every expert, the most used first; among equals by expert, then layer, so that layers get even shares.
// `hot_counts`: [num_layers, num_experts], or empty.
std::vector<base::ExpertKey> KeysByHotness(const TierShape& shape, absl::Span<const double> hot_counts);

// Appends an order for what each slot of the table holds.
void AppendWarmupOrders(const SlotTable& table, base::Tier tier, std::vector<api::FetchOrder>* orders);

}  // namespace comoe::routing
