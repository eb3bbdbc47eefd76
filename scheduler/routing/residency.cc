#include "scheduler/routing/residency.h"

#include "engine/base/check.h"

namespace comoe::routing {

Residency::Residency(const TierShape& shape)
    : exclusive_(shape.exclusive),
      device_(shape.num_layers, shape.num_experts, shape.device_slots),
      pinned_(shape.num_layers, shape.num_experts, shape.pinned_holds_all ? 0 : shape.pinned_slots) {}

Residency::Moved Residency::PlaceOnDevice(base::ExpertKey key, std::int32_t slot) {
  Moved moved;
  moved.pinned_slot = pinned_.SlotOf(key);
  moved.victim = device_.Place(key, slot);
  if (exclusive_ && moved.pinned_slot != kNoSlot) {
    pinned_.Clear(moved.pinned_slot);
    if (moved.victim.has_value()) {
      pinned_.Place(*moved.victim, moved.pinned_slot);
    }
  }
  return moved;
}

std::optional<base::ExpertKey> Residency::PlacePinned(base::ExpertKey key, std::int32_t slot) {
  COMOE_CHECK(!exclusive_ || device_.SlotOf(key) == kNoSlot, "exclusive: an expert lies in one tier only");
  return pinned_.Place(key, slot);
}

bool Residency::Vacate(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable) {
  if (tier != base::Tier::kDevice && tier != base::Tier::kPinned) {
    return false;
  }
  SlotTable& table = tier == base::Tier::kDevice ? device_ : pinned_;
  if (slot < 0 || slot >= table.num_slots()) {
    return false;  // of a tier that the engine keeps by itself
  }
  if (!usable) {
    table.Disable(slot);
    return true;
  }
  if (table.KeyIn(slot) != key) {
    return false;
  }
  table.Clear(slot);
  return true;
}

}  // namespace comoe::routing
