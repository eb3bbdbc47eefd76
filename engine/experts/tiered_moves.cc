// How experts move between tiers: what starts copies.
#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::Tier;
using Start = TransferEngine::Start;

namespace {

bool Free(const Place& place) { return place.expert < 0 || place.transient; }

}  // namespace

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

// What moves of experts leave of the spare page-locked places. Where hung copies have taken most, the last
// one is for those who leave the device, or nobody would ever get there.
std::int32_t TieredExpertCache::KeptForStaging() const {
  return std::min(options_.pinned_staging_slots, std::max(0, pinned_.num_usable_spares() - 1));
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
  COMOE_RETURN_IF_ERROR(StartDeviceCopy(n, from, target, reason, lane, kNone));
  if (target.refused) {
    Refuse(Tier::kDevice, slot, n, !target.unusable);
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
    to.place = free_host_.empty() && host_.size() > 0 ? kNone : FindPinnedSpare(KeptForStaging());
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

}  // namespace comoe::experts
