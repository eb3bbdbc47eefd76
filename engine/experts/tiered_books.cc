// Who lies where, which slot is for whom, and what the director has to hear of.
#include <utility>

#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::Tier;

void TieredExpertCache::Report(Tier tier, std::int32_t slot, std::int32_t n, bool usable) {
  vacated_.push_back({tier, slot, key(n), usable});
}

void TieredExpertCache::Claim(Tier tier, std::int32_t s, std::int32_t n) {
  Slot& slot = places(tier).slot(s);
  if (slot.expert == n) {
    return;
  }
  if (const std::int32_t before = slot.expert; before >= 0) {
    SlotOf(tier, before) = kNone;
    Changed(tier, before);
    if (GuessOf(tier, before) >= 0) {
      TakeBack(tier, before, true);
    }
  }
  Unclaim(tier, n);
  slot.expert = n;
  SlotOf(tier, n) = s;
  Changed(tier, n);
}

void TieredExpertCache::Unclaim(Tier tier, std::int32_t n) {
  if (const std::int32_t s = std::exchange(SlotOf(tier, n), kNone); s >= 0) {
    places(tier).slot(s).expert = kNone;
    Changed(tier, n);
  }
}

void TieredExpertCache::Refuse(Tier tier, std::int32_t slot, std::int32_t n, bool usable) {
  if (SlotOf(tier, n) == slot) {
    Unclaim(tier, n);
  }
  if (Places& its = places(tier); its.HasSlot(slot) && its.slot(slot).expert >= 0) {
    const std::int32_t before = its.slot(slot).expert;  // the director has given its slot away
    if (GuessOf(tier, before) >= 0) {
      TakeBack(tier, before, true);
    }
    Unclaim(tier, before);
  }
  if (slot != api::kStagingSlot) {
    Report(tier, slot, n, usable);
  }
}

void TieredExpertCache::Clear(Spot spot) {
  Place& place = at(spot);
  if (spot.tier == Tier::kDevice) {
    KeepLastUse(place);
  }
  const std::int32_t n = std::exchange(place.expert, kNone);
  place.failed = false;
  place.leaving = false;
  if (std::exchange(place.undecided, false)) {
    prefetch_pending_bytes_ -= index_.layout().bytes;
    prefetch_wasted_bytes_ += index_.layout().bytes;
  }
  if (n < 0 || std::exchange(place.transient, false)) {
    return;
  }
  if (PlaceOf(spot.tier, n) == spot.place) {
    PlaceOf(spot.tier, n) = kNone;
    Changed(spot.tier, n);
  }
  if (spot.tier == Tier::kHost) {
    free_host_.push_back(spot.place);
  } else if (spot.tier == Tier::kPinned && place.slot >= 0) {
    ListEmpty(place.slot);
  }
}

void TieredExpertCache::ListEmpty(std::int32_t slot) {
  if (options_.exclusive && !std::exchange(pinned_.slot(slot).listed, true)) {
    empty_pinned_slots_.push_back(slot);
  }
}

void TieredExpertCache::Vacate(Spot spot, bool usable) {
  Place& place = at(spot);
  const std::int32_t n = place.expert;
  const bool transient = place.transient;
  Clear(spot);
  if (!usable) {
    places(spot.tier).Lose(spot.place);
  }
  if (spot.tier == Tier::kHost || place.slot < 0) {
    return;
  }
  Slot& slot = places(spot.tier).slot(place.slot);
  slot.usable = usable;
  if (const std::int32_t claimant = slot.expert; claimant >= 0 && (claimant == n || !usable)) {
    if (GuessOf(spot.tier, claimant) >= 0) {
      TakeBack(spot.tier, claimant, true);
    }
    Unclaim(spot.tier, claimant);
    Report(spot.tier, place.slot, claimant, usable);
  } else if (!usable && n >= 0 && !transient) {
    Report(spot.tier, place.slot, n, false);
  }
}

std::int32_t TieredExpertCache::TakeBack(Tier tier, std::int32_t n, bool cancelled) {
  const std::int32_t id = std::exchange(GuessOf(tier, n), kNone);
  const Guess guess = transfers_->guess(id);
  if (guess.tier == Tier::kPinned && guess.state != Guess::State::kQueued) {
    GuessOf(tier, n) = id;  // under way: it ends by itself
    return kNone;
  }
  if (guess.staged_place >= 0) {
    Place& staged = pinned_[guess.staged_place];
    staged.held = false;
    if (guess.state == Guess::State::kStaging) {
      transfers_->copy(staged.inbound).guess = kNone;
    }
  }
  transfers_->Remove(id, cancelled);
  return guess.staged_place;
}

// Whether the expert has its bytes elsewhere than in `tier`, too.
bool TieredExpertCache::Droppable(Tier tier, std::int32_t n) const {
  const Expert& x = expert(n);
  return disk_ || (tier != Tier::kDevice && x.device >= 0 && device_[x.device].there()) ||
         (tier != Tier::kPinned && x.pinned >= 0 && pinned_[x.pinned].there()) ||
         (tier != Tier::kHost && x.host >= 0 && host_[x.host].there());
}

}  // namespace comoe::experts
