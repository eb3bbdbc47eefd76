// How experts move between tiers: what the ends of copies mean, and what moves because of them.
#include <algorithm>
#include <utility>

#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::Tier;

namespace {

Tier TargetTier(Copy::Purpose purpose) {
  switch (purpose) {
    case Copy::Purpose::kDevice:
      return Tier::kDevice;
    case Copy::Purpose::kStage:
    case Copy::Purpose::kPromote:
    case Copy::Purpose::kEvict:
      return Tier::kPinned;
    case Copy::Purpose::kDemote:
      return Tier::kHost;
  }
  return Tier::kHost;
}

}  // namespace

void TieredExpertCache::CountPrefetched(const Copy& copy, const Place& target, bool current) {
  if (copy.reason != base::CopyReason::kPrefetch) {
    return;
  }
  const std::uint64_t bytes = index_.layout().bytes;
  if (copy.used) {
    prefetch_used_bytes_ += bytes;
  } else if (current && target.expert == copy.expert) {
    prefetch_pending_bytes_ += bytes;
    device_[copy.target_place].undecided = true;
  } else {
    prefetch_wasted_bytes_ += bytes;
  }
}

void TieredExpertCache::FinishGuess(const Copy& copy, const absl::Status& status) {
  const Guess guess = transfers_->guess(copy.guess);
  if (copy.purpose == Copy::Purpose::kStage) {
    if (status.ok()) {
      transfers_->guess(copy.guess).state = Guess::State::kStaged;
      return;
    }
    pinned_[copy.target_place].held = false;
    expert(copy.expert).device_guess = kNone;
    Refuse(Tier::kDevice, guess.slot, copy.expert, true);
  } else if (copy.purpose == Copy::Purpose::kPromote) {
    expert(copy.expert).pinned_guess = kNone;
  }
  transfers_->Remove(copy.guess, false);
}

void TieredExpertCache::OnCopied(std::int32_t id, const Copy& copy, const absl::Status& status, bool hung) {
  const Spot to = {TargetTier(copy.purpose), copy.target_place};
  Place& place = at(to);
  const bool current = place.inbound == id;
  if (current) {
    place.inbound = kNone;
  }
  if (copy.purpose == Copy::Purpose::kDevice && status.ok()) {
    CountPrefetched(copy, place, current);
  }
  if (copy.purpose == Copy::Purpose::kStage && !status.ok()) {
    // Whatever was to be copied on from there.
    transfers_->ForEachUnderWay([&](Copy& next) {
      next.source_failed =
          next.source_failed || (next.purpose == Copy::Purpose::kDevice && next.expert == copy.expert &&
                                 next.source_place == copy.target_place && next.source == copy.target);
    });
  }
  if (copy.guess >= 0) {
    FinishGuess(copy, status);
  }
  // Who has taken the place since waits for this copy, so that the newcomer's end decides what becomes of it.
  lost_slots_ += current && hung ? 1 : 0;
  if (copy.purpose == Copy::Purpose::kEvict || copy.purpose == Copy::Purpose::kDemote) {
    FinishEviction(copy, status, current, hung);
  } else if (current && hung) {
    Vacate(to, false);
  } else if (current && status.ok()) {
    place.arrived = device::Event();
    Changed(to.tier, copy.expert);
    if (place.transient && !place.leased() && !place.held) {
      Clear(to);
    }
  } else if (current) {
    place.failed = true;
    if (!place.leased()) {
      Vacate(to, true);
    }
  }
  SettleExpert(copy.expert);
}

void TieredExpertCache::FinishEviction(const Copy& copy, const absl::Status& status, bool current,
                                       bool hung) {
  const Spot to = {TargetTier(copy.purpose), copy.target_place};
  const Spot from = {copy.purpose == Copy::Purpose::kEvict ? Tier::kDevice : Tier::kPinned,
                     copy.source_place};
  Place& source = at(from);
  const bool is_there = source.expert == copy.expert && source.leaving;
  if (is_there) {
    source.leaving = false;
  }
  if (!current) {
    return;  // it is known to have failed
  }
  if (!status.ok()) {
    Vacate(to, !hung);
    return;
  }
  at(to).arrived = device::Event();
  if (!is_there) {
    return;
  }
  if (source.slot >= 0 || source.leased() || (from.tier == Tier::kDevice && InUse(source))) {
    Vacate(to, true);  // wanted again meanwhile
  } else {
    Clear(from);
    ++lookups_[from.tier].evictions;
  }
}

// Exclusive: who has arrived leaves where it was.
void TieredExpertCache::SettleExpert(std::int32_t n) {
  if (!options_.exclusive || n < 0) {
    return;
  }
  const Expert& x = expert(n);
  const bool on_device = x.device >= 0 && device_[x.device].there() && !device_[x.device].leaving;
  const bool in_pinned = x.pinned >= 0 && pinned_[x.pinned].there() && !pinned_[x.pinned].leaving;
  if (on_device && in_pinned) {
    Unclaim(Tier::kPinned, n);
    Clear({Tier::kPinned, x.pinned});
  }
  if ((on_device || in_pinned) && x.host >= 0 && host_[x.host].there()) {
    Clear({Tier::kHost, x.host});
  }
}

void TieredExpertCache::Settle() {
  if (options_.exclusive && loaded_) {
    SettleDevice();
    SettlePinned();
  }
}

// Experts in the device's spare places are on their way out.
void TieredExpertCache::SettleDevice() {
  for (const std::int32_t i : device_.spares()) {
    Place& place = device_[i];
    if (!place.there() || place.leaving || InUse(place) || !place.usable) {
      continue;
    }
    const Expert& x = expert(place.expert);
    if ((x.pinned >= 0 && pinned_[x.pinned].there()) || (x.host >= 0 && host_[x.host].there())) {
      Clear({Tier::kDevice, i});
      continue;
    }
    if (x.pinned >= 0 || x.host >= 0) {
      continue;  // it is not known yet whether it needs this one
    }
    const std::int32_t to = FindPinnedSpare(KeptForStaging());
    if (to < 0) {
      return;
    }
    if (StartMove({.purpose = Copy::Purpose::kEvict,
                   .lane = Lane::kEvict,
                   .reason = base::CopyReason::kEvict,
                   .expert = place.expert,
                   .from = {Tier::kDevice, i},
                   .to = {Tier::kPinned, to}})
            .ok()) {
      place.leaving = true;
    }
  }
}

// Experts in spare page-locked places go to an empty slot, or down.
void TieredExpertCache::SettlePinned() {
  for (std::size_t i = 0; i < pinned_.spares().size(); ++i) {
    const std::int32_t p = pinned_.spares()[i];
    Place& place = pinned_[p];
    if (!place.there() || place.leaving || place.leased() || !place.usable) {
      continue;
    }
    if (const std::int32_t slot = FindEmptyPinnedSlot(); slot >= 0) {
      if (const std::int32_t guess = expert(place.expert).pinned_guess;
          guess >= 0 && transfers_->guess(guess).state == Guess::State::kQueued) {
        // It has come by itself, and to another slot than it was ordered to.
        const std::int32_t ordered = transfers_->guess(guess).slot;
        TakeBack(Tier::kPinned, place.expert, true);
        Refuse(Tier::kPinned, ordered, place.expert, true);
      }
      Claim(Tier::kPinned, slot, place.expert);
      pinned_.GiveTo(slot, p);
    } else if (disk_) {
      Clear({Tier::kPinned, p});
      ++lookups_[Tier::kPinned].evictions;
    } else if (const std::int32_t host = FindFreeHost(); host >= 0 && expert(place.expert).host < 0) {
      if (StartMove({.purpose = Copy::Purpose::kDemote,
                     .lane = Lane::kStage,
                     .reason = base::CopyReason::kEvict,
                     .expert = place.expert,
                     .from = {Tier::kPinned, p},
                     .to = {Tier::kHost, host}})
              .ok()) {
        place.leaving = true;
        free_host_.erase(std::find(free_host_.begin(), free_host_.end(), host));
      }
    }
  }
}

std::int32_t TieredExpertCache::FindEmptyPinnedSlot() {
  for (std::size_t i = empty_pinned_slots_.size(); i-- > 0;) {
    const std::int32_t s = empty_pinned_slots_[i];
    const Place& place = pinned_.at_slot(s);
    const bool empty = place.expert < 0 && place.usable && place.inbound < 0;
    if (empty && (place.leased() || pinned_.slot(s).expert >= 0)) {
      continue;  // empty again once it is given back, or when its order is refused
    }
    empty_pinned_slots_.erase(empty_pinned_slots_.begin() + static_cast<std::ptrdiff_t>(i));
    pinned_.slot(s).listed = false;
    if (empty) {
      return s;
    }
  }
  return kNone;
}

std::int32_t TieredExpertCache::FindFreeHost() const {
  for (const std::int32_t i : free_host_) {
    if (host_[i].usable && !host_[i].leased()) {
      return i;
    }
  }
  return kNone;
}

}  // namespace comoe::experts
