#include "scheduler/routing/pinned_promoter.h"

#include <cstddef>
#include <optional>

namespace comoe::routing {
namespace {

// Worth of a pinned copy whose expert is on the device too: needed only once that is displaced.
constexpr double kCopyShare = 0.5;

}  // namespace

PinnedPromoter::PinnedPromoter(Residency* residency, double margin)
    : residency_(*residency),
      margin_(margin),
      victims_(residency->pinned().num_slots()),
      used_in_(static_cast<std::size_t>(residency->pinned().num_slots()), 0) {}

void PinnedPromoter::RefreshLayer(std::int32_t layer, std::int32_t num_experts, ValueFn value) {
  if (residency_.pinned().num_slots() == 0) {
    return;
  }
  for (std::int32_t expert = 0; expert < num_experts; ++expert) {
    Refresh(residency_.pinned().SlotOf({layer, expert}), value);
  }
}

void PinnedPromoter::RefreshAll(ValueFn value) {
  for (std::int32_t slot = 0; slot < residency_.pinned().num_slots(); ++slot) {
    Refresh(slot, value);
  }
}

void PinnedPromoter::Placed(base::ExpertKey key, const Residency::Moved& moved, ValueFn value) {
  if (residency_.pinned().num_slots() == 0) {
    return;
  }
  if (moved.pinned_slot != kNoSlot) {
    used_in_[static_cast<std::size_t>(moved.pinned_slot)] = turn_;
    Refresh(moved.pinned_slot, value);
  }
  Refresh(residency_.pinned().SlotOf(key), value);
  if (moved.victim.has_value()) {
    Refresh(residency_.pinned().SlotOf(*moved.victim), value);
  }
}

void PinnedPromoter::Vacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, ValueFn value) {
  if (tier == base::Tier::kPinned && slot >= 0 && slot < residency_.pinned().num_slots()) {
    Refresh(slot, value);
  } else if (residency_.pinned().num_slots() > 0) {
    Refresh(residency_.pinned().SlotOf(key), value);
  }
}

void PinnedPromoter::Promote(absl::Span<const base::ExpertKey> keys, std::int32_t most,
                             const NeededSet& needed, ValueFn value, std::vector<api::FetchOrder>* orders) {
  const SlotTable& pinned = residency_.pinned();
  if (pinned.num_slots() == 0) {
    return;
  }
  std::int32_t num_left = most;
  for (const base::ExpertKey key : keys) {
    if (num_left == 0) {
      break;
    }
    if (residency_.device().SlotOf(key) != kNoSlot || pinned.SlotOf(key) != kNoSlot) {
      continue;
    }
    std::int32_t slot = pinned.FreeSlot();
    if (slot == kNoSlot) {
      slot = victims_.Lowest([this, &pinned, &needed](std::int32_t candidate) {
        return used_in_[static_cast<std::size_t>(candidate)] != turn_ &&
               !needed.Contains(*pinned.KeyIn(candidate));
      });
      if (slot == kNoSlot || victims_.worth(slot).value + margin_ > value(key)) {
        break;
      }
    } else if (used_in_[static_cast<std::size_t>(slot)] == turn_) {
      break;  // what left it is still being read
    }
    residency_.PlacePinned(key, slot);
    used_in_[static_cast<std::size_t>(slot)] = turn_;
    Refresh(slot, value);
    orders->push_back({key, base::Tier::kPinned, slot, base::CopyReason::kPrefetch});
    --num_left;
  }
}

void PinnedPromoter::Refresh(std::int32_t slot, ValueFn value) {
  if (slot == kNoSlot) {
    return;
  }
  const std::optional<base::ExpertKey> key = residency_.pinned().KeyIn(slot);
  if (!key.has_value()) {
    victims_.Remove(slot);
    return;
  }
  const bool copy = residency_.device().SlotOf(*key) != kNoSlot;
  victims_.Set(slot, {value(*key) * (copy ? kCopyShare : 1.0), 0});
}

}  // namespace comoe::routing
