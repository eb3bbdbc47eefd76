// Where experts lie as the director has decided it: the device and the pinned table, kept in step with each
// other. Not thread-safe; nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/base/ids.h"
#include "engine/base/stage.h"
#include "scheduler/routing/slot_table.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// With exclusive tiers an expert that comes to the device leaves its pinned slot to what it displaced; what
// it displaced goes to the host tier where there was none. Where pinned_holds_all, the pinned tier is the
// engine's affair and has no table.
class Residency {
 public:
  struct Moved {
    std::optional<base::ExpertKey> victim;  // no longer on the device
    std::int32_t pinned_slot = kNoSlot;     // the one that the newcomer is read from, if that is known
  };

  explicit Residency(const TierShape& shape);

  // `key` is not on the device.
  Moved PlaceOnDevice(base::ExpertKey key, std::int32_t slot);
  // `key` is not in the pinned tier nor, where tiers are exclusive, on the device. Returns the victim.
  std::optional<base::ExpertKey> PlacePinned(base::ExpertKey key, std::int32_t slot);
  // What ExpertDirector::OnVacated says. True: the slot held `key`, or was disabled. A report about an expert
  // that has been displaced since changes nothing but that. What a swap moved is not moved back: the engine
  // reports the pinned slot too if nothing got there.
  bool Vacate(base::Tier tier, std::int32_t slot, base::ExpertKey key, bool usable);

  const SlotTable& device() const { return device_; }
  const SlotTable& pinned() const { return pinned_; }  // of no slots where pinned_holds_all

 private:
  const bool exclusive_;
  SlotTable device_;
  SlotTable pinned_;
};

}  // namespace comoe::routing
