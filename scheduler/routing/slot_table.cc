#include "scheduler/routing/slot_table.h"

#include "engine/base/check.h"

namespace comoe::routing {
namespace {

constexpr base::ExpertKey kNoKey{-1, -1};

}  // namespace

SlotTable::SlotTable(std::int32_t num_layers, std::int32_t num_experts, std::int32_t num_slots)
    : maps_(static_cast<std::size_t>(num_layers)),
      keys_(static_cast<std::size_t>(num_slots), kNoKey),
      free_position_(static_cast<std::size_t>(num_slots), kUsedPosition) {
  for (api::SlotMap& map : maps_) {
    map.slot.assign(static_cast<std::size_t>(num_experts), kNoSlot);
  }
  free_.reserve(static_cast<std::size_t>(num_slots));
  for (std::int32_t slot = num_slots - 1; slot >= 0; --slot) {
    PushFree(slot);
  }
}

std::optional<base::ExpertKey> SlotTable::Place(base::ExpertKey key, std::int32_t slot) {
  COMOE_CHECK(SlotOf(key) == kNoSlot, "an expert is in at most one slot of a tier");
  COMOE_CHECK(!disabled(slot), "a disabled slot is never used again");
  const std::optional<base::ExpertKey> victim = Clear(slot);
  RemoveFree(slot);
  keys_[static_cast<std::size_t>(slot)] = key;
  maps_[static_cast<std::size_t>(key.layer)].slot[static_cast<std::size_t>(key.expert)] = slot;
  return victim;
}

std::optional<base::ExpertKey> SlotTable::Clear(std::int32_t slot) {
  const std::optional<base::ExpertKey> key = KeyIn(slot);
  if (key.has_value()) {
    maps_[static_cast<std::size_t>(key->layer)].slot[static_cast<std::size_t>(key->expert)] = kNoSlot;
    keys_[static_cast<std::size_t>(slot)] = kNoKey;
    PushFree(slot);
  }
  return key;
}

void SlotTable::Disable(std::int32_t slot) {
  if (disabled(slot)) {
    return;
  }
  Clear(slot);
  RemoveFree(slot);
  free_position_[static_cast<std::size_t>(slot)] = kDisabledPosition;
}

void SlotTable::PushFree(std::int32_t slot) {
  free_position_[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(free_.size());
  free_.push_back(slot);
}

void SlotTable::RemoveFree(std::int32_t slot) {
  const std::int32_t position = free_position_[static_cast<std::size_t>(slot)];
  const std::int32_t last = free_.back();
  free_[static_cast<std::size_t>(position)] = last;
  free_position_[static_cast<std::size_t>(last)] = position;
  free_.pop_back();
  free_position_[static_cast<std::size_t>(slot)] = kUsedPosition;
}

}  // namespace comoe::routing
