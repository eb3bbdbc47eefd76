// Which expert is in which slot of one tier, both ways, in dense arrays: no hashing, every call O(1), nothing
// allocated after construction. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/api/expert_director.h"
#include "engine/base/ids.h"

namespace comoe::routing {

inline constexpr std::int32_t kNoSlot = -1;

// Invariants: an expert is in at most one slot; a slot is used, free, or disabled for good; SlotOf and KeyIn
// agree. Keys and slots passed in are in range.
class SlotTable {
 public:
  // All slots free; they are handed out from 0 up.
  SlotTable(std::int32_t num_layers, std::int32_t num_experts, std::int32_t num_slots);

  // Puts `key`, which is in no slot, into a slot that is not disabled; returns what was in it.
  std::optional<base::ExpertKey> Place(base::ExpertKey key, std::int32_t slot);
  // Frees the slot; returns what was in it.
  std::optional<base::ExpertKey> Clear(std::int32_t slot);
  // Clears the slot and takes it out of use for good.
  void Disable(std::int32_t slot);

  // kNoSlot: in none.
  std::int32_t SlotOf(base::ExpertKey key) const {
    return maps_[static_cast<std::size_t>(key.layer)].slot[static_cast<std::size_t>(key.expert)];
  }
  std::optional<base::ExpertKey> KeyIn(std::int32_t slot) const {
    const base::ExpertKey key = keys_[static_cast<std::size_t>(slot)];
    return key.layer < 0 ? std::nullopt : std::optional<base::ExpertKey>(key);
  }
  // A slot that Place may take without a victim; kNoSlot: none is free.
  std::int32_t FreeSlot() const { return free_.empty() ? kNoSlot : free_.back(); }
  bool disabled(std::int32_t slot) const {
    return free_position_[static_cast<std::size_t>(slot)] == kDisabledPosition;
  }
  std::int32_t num_slots() const { return static_cast<std::int32_t>(keys_.size()); }
  std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }
  // One layer's part, always up to date.
  const api::SlotMap& map(std::int32_t layer) const { return maps_[static_cast<std::size_t>(layer)]; }

 private:
  static constexpr std::int32_t kUsedPosition = -1;
  static constexpr std::int32_t kDisabledPosition = -2;

  void PushFree(std::int32_t slot);
  void RemoveFree(std::int32_t slot);

  std::vector<api::SlotMap> maps_;           // [num_layers] of [num_experts]
  std::vector<base::ExpertKey> keys_;        // [num_slots]; layer -1: empty
  std::vector<std::int32_t> free_;           // a stack
  std::vector<std::int32_t> free_position_;  // [num_slots]: in free_, or one of the constants above
};

}  // namespace comoe::routing
