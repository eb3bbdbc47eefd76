// How experts move between tiers: what starts copies, and what their ends mean.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::Tier;
using Start = TransferEngine::Start;

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

bool Free(const Place& place) { return place.expert < 0 || place.transient; }

}  // namespace

// Starting --------------------------------------------------------------------------------------------------

absl::Status TieredExpertCache::StartMove(const Move& move) {
  Place& to = at(move.to);
  Place* from = move.from.tier == Tier::kDisk ? nullptr : &at(move.from);
  std::array<TransferEngine::After, Readers::kMost + 2> after;
  std::size_t count = 0;
  if (move.to.tier == Tier::kDevice) {
    KeepLastUse(to);
  }
  to.readers.ForEach([&](const device::Event& event) {
    if (!event.Done()) {
      after[count++] = {&event, base::WaitEdge::kSlotFree};
    }
  });
  if (!to.arrived.Done()) {
    after[count++] = {&to.arrived, base::WaitEdge::kSlotFree};
  }
  if (from != nullptr && (from->inbound >= 0 || from->failed)) {
    after[count++] = {&from->arrived, base::WaitEdge::kStaged, true};
  }
  const bool to_device = move.to.tier == Tier::kDevice;
  const bool link = to_device || move.from.tier == Tier::kDevice;
  Copy copy = {.purpose = move.purpose,
               .lane = move.lane,
               .reason = move.reason,
               .key = key(move.expert),
               .expert = move.expert,
               .source_place = move.from.place,
               .target_place = move.to.place,
               .guess = move.guess,
               .target = to.data,
               .source = from == nullptr ? nullptr : from->data,
               .file = file_.get(),
               .pageable = link && !pinned_.page_locked(),
               .transient = move.transient};
  copy.direction = to_device                       ? base::CopyDirection::kHostToDevice
                   : link                          ? base::CopyDirection::kDeviceToHost
                   : move.from.tier == Tier::kDisk ? base::CopyDirection::kDiskToHost
                                                   : base::CopyDirection::kHostToHost;
  COMOE_ASSIGN_OR_RETURN(TransferEngine::Submitted submitted,
                         transfers_->Submit(copy, absl::MakeConstSpan(after).first(count)));
  if (to.expert >= 0) {
    lookups_[move.to.tier].evictions += to.there() ? 1 : 0;
    Clear(move.to);
  }
  if (from != nullptr) {
    from->readers.AddCopy(move.lane, submitted.done);
  }
  to.expert = move.expert;
  to.transient = move.transient;
  to.failed = false;
  to.inbound = submitted.id;
  to.arrived = std::move(submitted.done);
  to.edge = move.lane == Lane::kGuess ? base::WaitEdge::kPrefetchCopy : base::WaitEdge::kDemandCopy;
  to.readers.Clear();
  to.taken = ++taken_;
  if (!move.transient) {
    PlaceOf(move.to.tier, move.expert) = move.to.place;
    Changed(move.to.tier, move.expert);
  }
  return absl::OkStatus();
}

// A spare page-locked place, such that `left` others are free as well.
std::int32_t TieredExpertCache::FindPinnedSpare(std::int32_t left) const {
  std::int32_t free = 0;
  for (const std::int32_t i : pinned_.spares()) {
    const Place& place = pinned_[i];
    free += place.usable && !place.held && !place.leased() && Free(place) ? 1 : 0;
  }
  return free > left ? pinned_.FindSpare(Free) : kNone;
}

TieredExpertCache::Target TieredExpertCache::ChooseTarget(std::int32_t n, std::int32_t slot,
                                                          bool from_pinned) const {
  const auto may_take = [this](const Place& place) {
    return !InUse(place) && (Free(place) || (!place.leaving && Droppable(Tier::kDevice, place.expert)));
  };
  Target target;
  if (slot != api::kStagingSlot) {
    if (!device_.HasSlot(slot) || !device_.slot(slot).usable) {
      target.refused = target.unusable = true;
    } else {
      const Slot& wanted = device_.slot(slot);
      const Place& place = device_[wanted.place];
      // A victim of a swap is kept even if the file has it: it goes to where the newcomer was.
      const bool keep = options_.exclusive && place.there() && place.expert != n &&
                        (from_pinned || !Droppable(Tier::kDevice, place.expert));
      const bool in_use = InUse(place);
      if (!keep && !in_use) {
        return {wanted.place, slot};
      }
      target.later = in_use && !place.leased();
      if (options_.exclusive && !target.later) {
        // One spare place stays free, so that any expert can be had.
        std::int32_t free = 0;
        for (const std::int32_t i : device_.spares()) {
          free += device_[i].usable && may_take(device_[i]) ? 1 : 0;
        }
        if (free >= 2) {
          return {device_.FindSpare(may_take), slot};
        }
      }
      target.refused = true;
    }
  }
  target.place = device_.FindSpare(may_take);
  return target;
}

// The copy, and the slot's change of place.
absl::Status TieredExpertCache::StartDeviceCopy(std::int32_t n, Spot from, const Target& target,
                                                base::CopyReason reason, Lane lane, std::int32_t guess) {
  const bool stays = target.slot != api::kStagingSlot;
  COMOE_RETURN_IF_ERROR(StartMove({.purpose = Copy::Purpose::kDevice,
                                   .lane = lane,
                                   .reason = reason,
                                   .expert = n,
                                   .from = from,
                                   .to = {Tier::kDevice, target.place},
                                   .guess = guess,
                                   .transient = !stays}));
  if (stays) {
    Claim(Tier::kDevice, target.slot, n);
    device_.GiveTo(target.slot, target.place);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int32_t> TieredExpertCache::ToDevice(std::int32_t n, std::int32_t slot,
                                                         base::CopyReason reason, Lane lane,
                                                         std::int32_t staged) {
  const Expert& x = expert(n);
  Spot from = {Tier::kPinned, staged >= 0 ? staged : x.pinned};
  if (from.place >= 0 && pinned_[from.place].failed) {
    from.place = kNone;
  }
  const Target target = ChooseTarget(n, slot, x.pinned >= 0);
  if (target.place < 0) {
    return kNone;
  }
  if (from.place < 0) {
    from.place = FindPinnedSpare(0);
    if (from.place < 0) {
      return kNone;
    }
    COMOE_RETURN_IF_ERROR(StartMove({.purpose = Copy::Purpose::kStage,
                                     .lane = Lane::kStage,
                                     .reason = reason,
                                     .expert = n,
                                     .from = {x.host >= 0 ? Tier::kHost : Tier::kDisk, x.host},
                                     .to = from,
                                     .transient = true}));
  }
  if (target.refused) {
    Refuse(Tier::kDevice, slot, n, !target.unusable);
  }
  if (absl::Status started = StartDeviceCopy(n, from, target, reason, lane, kNone); !started.ok()) {
    if (!target.refused) {
      Refuse(Tier::kDevice, slot, n, true);
    }
    return started;
  }
  return target.place;
}

Start TieredExpertCache::StartGuess(std::int32_t id) {
  const Guess guess = transfers_->guess(id);
  if (guess.tier == Tier::kPinned) {
    return StartPromotion(id);
  }
  const std::int32_t n = guess.expert;
  Expert& x = expert(n);
  const Target target = ChooseTarget(n, guess.slot, x.pinned >= 0);
  Spot from = {Tier::kPinned, guess.staged_place >= 0 ? guess.staged_place : x.pinned};
  absl::Status started;
  if (target.refused && (options_.exclusive || target.later) && !target.unusable) {
    return Start::kLater;
  }
  if (target.refused) {
    started = absl::UnavailableError("the slot is in use");
  } else if (from.place >= 0) {
    if (pinned_[from.place].inbound >= 0) {
      return Start::kLater;  // it is still on its way there
    }
    started = StartDeviceCopy(n, from, target, guess.reason, Lane::kGuess, id);
  } else {
    from.place = FindPinnedSpare(kForFetches);
    if (from.place < 0) {
      return Start::kLater;
    }
    started = StartMove({.purpose = Copy::Purpose::kStage,
                         .lane = Lane::kStage,
                         .reason = guess.reason,
                         .expert = n,
                         .from = {x.host >= 0 ? Tier::kHost : Tier::kDisk, x.host},
                         .to = from,
                         .guess = id,
                         .transient = true});
    if (started.ok()) {
      pinned_[from.place].held = true;
      transfers_->guess(id).staged_place = from.place;
      transfers_->guess(id).state = Guess::State::kStaging;
      return Start::kStarted;
    }
  }
  x.device_guess = kNone;
  if (guess.staged_place >= 0) {
    pinned_[guess.staged_place].held = false;
  }
  if (!started.ok()) {
    Refuse(Tier::kDevice, guess.slot, n, !target.unusable);
    return Start::kDropped;
  }
  transfers_->guess(id).staged_place = kNone;
  transfers_->guess(id).state = Guess::State::kOnLink;
  return Start::kStarted;
}

Start TieredExpertCache::StartPromotion(std::int32_t id) {
  const Guess guess = transfers_->guess(id);
  const std::int32_t n = guess.expert;
  Expert& x = expert(n);
  Spot to = {Tier::kPinned, pinned_.slot(guess.slot).place};
  const Place& before = at(to);
  const bool keep = options_.exclusive && before.there() && !Droppable(Tier::kPinned, before.expert);
  bool possible = x.pinned < 0 && pinned_.slot(guess.slot).usable && !(options_.exclusive && x.device >= 0);
  if (possible && (keep || before.leaving)) {
    to.place =
        free_host_.empty() && host_.size() > 0 ? kNone : FindPinnedSpare(options_.pinned_staging_slots);
    if (to.place < 0) {
      return Start::kLater;
    }
  } else if (before.leased() || (before.inbound >= 0 && before.expert >= 0)) {
    possible = false;
  }
  if (possible) {
    possible = StartMove({.purpose = Copy::Purpose::kPromote,
                          .lane = Lane::kStage,
                          .reason = guess.reason,
                          .expert = n,
                          .from = {x.host >= 0 ? Tier::kHost : Tier::kDisk, x.host},
                          .to = to,
                          .guess = id})
                   .ok();
  }
  if (!possible) {
    x.pinned_guess = kNone;
    Refuse(Tier::kPinned, guess.slot, n, pinned_.slot(guess.slot).usable);
    return Start::kDropped;
  }
  pinned_.GiveTo(guess.slot, to.place);
  transfers_->guess(id).state = Guess::State::kOnLink;
  return Start::kStarted;
}

// Ends ------------------------------------------------------------------------------------------------------

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
  lost_slots_ += hung ? 1 : 0;
  if (copy.purpose == Copy::Purpose::kEvict || copy.purpose == Copy::Purpose::kDemote) {
    FinishEviction(copy, status, hung);
  } else if (hung) {
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

void TieredExpertCache::FinishEviction(const Copy& copy, const absl::Status& status, bool hung) {
  const Spot to = {TargetTier(copy.purpose), copy.target_place};
  const Spot from = {copy.purpose == Copy::Purpose::kEvict ? Tier::kDevice : Tier::kPinned,
                     copy.source_place};
  Place& source = at(from);
  const bool is_there = source.expert == copy.expert && source.leaving;
  if (is_there) {
    source.leaving = false;
  }
  if (!status.ok()) {
    Clear(to);
    if (hung) {
      places(to.tier).Lose(to.place);
    }
    return;
  }
  at(to).arrived = device::Event();
  if (!is_there) {
    return;
  }
  if (source.slot >= 0 || source.leased() || (from.tier == Tier::kDevice && InUse(source))) {
    Clear(to);  // wanted again meanwhile
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
    const std::int32_t to = FindPinnedSpare(options_.pinned_staging_slots);
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
