#include "engine/experts/tiered_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"

namespace comoe::experts {

using base::Tier;
using Scope = TransferEngine::Scope;

TieredExpertCache::~TieredExpertCache() {
  if (options_.keep != nullptr && transfers_ != nullptr && transfers_->Stop()) {
    KeepPinned();
  }
}

absl::StatusOr<std::int32_t> TieredExpertCache::NumberOf(base::ExpertKey key) const {
  const checkpoint::ExpertEntry* entry = index_.Find(key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat("the model has no expert ", key.expert, " in layer ", key.layer));
  }
  // In memory blobs follow each other without gaps.
  return static_cast<std::int32_t>(entry->offset / index_.layout().bytes);
}

Places& TieredExpertCache::places(Tier tier) {
  COMOE_CHECK(tier != Tier::kDisk, "a file has no places");
  return tier == Tier::kDevice ? device_ : tier == Tier::kPinned ? pinned_ : host_;
}

std::int32_t& TieredExpertCache::PlaceOf(Tier tier, std::int32_t n) {
  Expert& x = expert(n);
  return tier == Tier::kDevice ? x.device : tier == Tier::kPinned ? x.pinned : x.host;
}

std::int32_t& TieredExpertCache::SlotOf(Tier tier, std::int32_t n) {
  return tier == Tier::kDevice ? expert(n).device_slot : expert(n).pinned_slot;
}

std::int32_t& TieredExpertCache::GuessOf(Tier tier, std::int32_t n) {
  return tier == Tier::kDevice ? expert(n).device_guess : expert(n).pinned_guess;
}

TieredExpertCache::Spot TieredExpertCache::Find(const std::byte* data) const {
  if (const std::int32_t i = device_.IndexOf(data); i >= 0) {
    return {Tier::kDevice, i};
  }
  if (const std::int32_t i = pinned_.IndexOf(data); i >= 0) {
    return {Tier::kPinned, i};
  }
  const std::int32_t i = host_.IndexOf(data);
  COMOE_CHECK(i >= 0, "a lease is of a place of this cache");
  return {Tier::kHost, i};
}

// A layer that is at or before the last one that passed begins a new walk.
void TieredExpertCache::Touch(std::int32_t layer) {
  if (layer < position_ || (layer == position_ && passed_)) {
    ++sweep_;
  }
  position_ = layer;
  passed_ = false;
}

Served TieredExpertCache::Serve(Spot spot) {
  Place& place = at(spot);
  if (place.inbound >= 0) {
    transfers_->copy(place.inbound).used = true;
  }
  if (std::exchange(place.undecided, false)) {
    prefetch_pending_bytes_ -= index_.layout().bytes;
    prefetch_used_bytes_ += index_.layout().bytes;
  }
  return {Lease(key(place.expert), {place.data, &index_.layout()}, &place.pins), place.arrived, place.edge};
}

absl::StatusOr<Served> TieredExpertCache::Acquire(base::ExpertKey key) {
  Scope scope(*transfers_);
  COMOE_ASSIGN_OR_RETURN(const std::int32_t n, NumberOf(key));
  Touch(key.layer);
  std::int32_t place = expert(n).device;
  if (place < 0 && expert(n).device_guess >= 0) {
    COMOE_ASSIGN_OR_RETURN(place, Promote(n));
  }
  if (place < 0 && JustVacated(key)) {
    COMOE_ASSIGN_OR_RETURN(place,
                           ToDevice(n, api::kStagingSlot, base::CopyReason::kDemand, Lane::kDemand, kNone));
    if (place < 0) {
      return absl::ResourceExhaustedError("all staging slots are leased");
    }
    CountMiss(n);
    return Serve({Tier::kDevice, place});
  }
  if (place < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("expert ", key.expert, " of layer ", key.layer, " is not on the device"));
  }
  ++lookups_[Tier::kDevice].hits;
  return Serve({Tier::kDevice, place});
}

// A guess that came true while it waited.
absl::StatusOr<std::int32_t> TieredExpertCache::Promote(std::int32_t n) {
  const std::int32_t slot = transfers_->guess(expert(n).device_guess).slot;
  const std::int32_t staged = TakeBack(Tier::kDevice, n, false);
  absl::StatusOr<std::int32_t> place = ToDevice(n, slot, base::CopyReason::kDemand, Lane::kDemand, staged);
  if (!place.ok() || *place < 0) {
    Refuse(Tier::kDevice, slot, n, true);
    return place.ok() ? absl::ResourceExhaustedError("all staging slots are leased") : place.status();
  }
  return place;
}

// The director does not know yet that it lost this one.
bool TieredExpertCache::JustVacated(base::ExpertKey key) const {
  return std::any_of(vacated_.begin(), vacated_.end(), [&](const Vacated& vacated) {
    return vacated.tier == Tier::kDevice && vacated.key == key;
  });
}

void TieredExpertCache::CountMiss(std::int32_t n) {
  ++lookups_[Tier::kDevice].misses;
  if (expert(n).pinned >= 0) {
    ++lookups_[Tier::kPinned].hits;
    return;
  }
  ++lookups_[Tier::kPinned].misses;
  ++lookups_[expert(n).host >= 0 ? Tier::kHost : Tier::kDisk].hits;
}

absl::StatusOr<std::optional<Served>> TieredExpertCache::Fetch(base::ExpertKey key, std::int32_t slot) {
  Scope scope(*transfers_);
  COMOE_ASSIGN_OR_RETURN(const std::int32_t n, NumberOf(key));
  Touch(key.layer);
  const Expert& x = expert(n);
  if (x.device >= 0) {
    // The director lost sight of it, or of where: no copy.
    if (device_.HasSlot(slot) && device_.slot(slot).usable && device_[x.device].usable) {
      Claim(Tier::kDevice, slot, n);
      device_.GiveTo(slot, x.device);
    }
    ++lookups_[Tier::kDevice].hits;
    return Serve({Tier::kDevice, x.device});
  }
  std::int32_t staged = kNone;
  if (x.device_guess >= 0) {
    const std::int32_t before = transfers_->guess(x.device_guess).slot;
    staged = TakeBack(Tier::kDevice, n, false);
    if (before != slot) {
      Refuse(Tier::kDevice, before, n, true);
    }
  }
  absl::StatusOr<std::int32_t> place = ToDevice(n, slot, base::CopyReason::kDemand, Lane::kDemand, staged);
  if (place.ok() && *place < 0) {
    if (device_.num_usable_spares() > 0 && pinned_.num_usable_spares() > 0) {
      return std::optional<Served>();
    }
    place = absl::ResourceExhaustedError("copies that never ended have taken all staging slots");
  }
  if (!place.ok()) {
    Refuse(Tier::kDevice, slot, n, device_.HasSlot(slot) && device_.slot(slot).usable);
    return place.status();
  }
  CountMiss(n);
  return Serve({Tier::kDevice, *place});
}

std::optional<device::Event> TieredExpertCache::UnderWay() {
  Scope scope(*transfers_);
  return transfers_->Oldest();
}

absl::StatusOr<Served> TieredExpertCache::AcquireHost(base::ExpertKey key) {
  Scope scope(*transfers_);
  COMOE_ASSIGN_OR_RETURN(const std::int32_t n, NumberOf(key));
  Touch(key.layer);
  const Expert& x = expert(n);
  Spot spot;
  if (x.pinned >= 0 && !pinned_[x.pinned].failed) {
    spot = {Tier::kPinned, x.pinned};
  } else if (x.host >= 0 && !host_[x.host].failed) {
    spot = {Tier::kHost, x.host};
  } else if (disk_) {
    spot = {Tier::kPinned, FindPinnedSpare(kForFetches)};
    if (spot.place < 0) {
      return absl::ResourceExhaustedError("all staging slots of the host are leased");
    }
    COMOE_RETURN_IF_ERROR(StartMove({.purpose = Copy::Purpose::kStage,
                                     .lane = Lane::kStage,
                                     .reason = base::CopyReason::kDemand,
                                     .expert = n,
                                     .from = {Tier::kDisk, kNone},
                                     .to = spot,
                                     .transient = true}));
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("expert ", key.expert, " of layer ", key.layer, " is on the device only"));
  }
  CountMiss(n);
  Served served = Serve(spot);
  served.edge = base::WaitEdge::kStaged;
  return served;
}

void TieredExpertCache::Release(Lease lease, const device::Event& last_use) {
  if (lease.view().data == nullptr) {
    return;
  }
  Scope scope(*transfers_);
  const Spot spot = Find(lease.view().data);
  lease = Lease();
  Place& place = at(spot);
  place.readers.AddUse(last_use);
  if (place.leased() || place.expert < 0 || place.inbound >= 0) {
    return;
  }
  if (place.failed) {
    Vacate(spot, true);
  } else if (place.transient) {
    Clear(spot);
  }
}

void TieredExpertCache::Failed(Lease lease, const absl::Status& status) {
  if (lease.view().data == nullptr) {
    return;
  }
  Scope scope(*transfers_);
  const Spot spot = Find(lease.view().data);
  const base::ExpertKey who = lease.key();
  lease = Lease();
  Place& place = at(spot);
  if (place.expert < 0 || key(place.expert) != who) {
    return;  // given up before
  }
  if (place.inbound < 0) {
    // Without `failed` the bytes are there: what failed was something else.
    if (place.failed && !place.leased()) {
      Vacate(spot, true);
    }
  } else if (place.arrived.Done()) {
    transfers_->Finish(place.inbound);
  } else if (absl::IsDeadlineExceeded(status)) {
    transfers_->GiveUp(place.inbound);
  } else {
    // It is known to fail, and has not yet.
    place.inbound = kNone;
    Vacate(spot, true);
  }
}

void TieredExpertCache::Prefetch(absl::Span<const api::FetchOrder> orders) {
  Scope scope(*transfers_);
  for (const api::FetchOrder& order : orders) {
    const absl::StatusOr<std::int32_t> n = NumberOf(order.key);
    const bool tier = order.tier == Tier::kDevice || order.tier == Tier::kPinned;
    if (!n.ok() || !tier) {
      vacated_.push_back({order.tier, order.slot, order.key, true});
      continue;
    }
    Places& its = places(order.tier);
    if (!its.HasSlot(order.slot) || !its.slot(order.slot).usable) {
      Report(order.tier, order.slot, *n, false);
    } else if (order.tier == Tier::kDevice) {
      OrderToDevice(*n, order);
    } else {
      OrderToPinned(*n, order);
    }
  }
}

void TieredExpertCache::OrderToDevice(std::int32_t n, const api::FetchOrder& order) {
  const Expert& x = expert(n);
  const Place& before = device_.at_slot(order.slot);
  if (x.device >= 0 && !device_[x.device].transient) {
    Claim(Tier::kDevice, order.slot, n);
    device_.GiveTo(order.slot, x.device);
  } else if (x.device_guess >= 0) {
    Claim(Tier::kDevice, order.slot, n);
    transfers_->guess(x.device_guess).slot = order.slot;
  } else if (before.leased() && !options_.exclusive) {
    Refuse(Tier::kDevice, order.slot, n, true);
  } else {
    Enqueue(n, order);
  }
}

void TieredExpertCache::OrderToPinned(std::int32_t n, const api::FetchOrder& order) {
  const Expert& x = expert(n);
  if (x.pinned >= 0) {
    if (!pinned_[x.pinned].leaving) {
      const std::int32_t before = pinned_[x.pinned].slot;
      Claim(Tier::kPinned, order.slot, n);
      pinned_.GiveTo(order.slot, x.pinned);
      if (before >= 0 && pinned_.at_slot(before).expert < 0) {
        ListEmpty(before);
      }
    } else {
      Refuse(Tier::kPinned, order.slot, n, true);
    }
  } else if (x.pinned_guess >= 0) {
    if (transfers_->guess(x.pinned_guess).state == Guess::State::kQueued) {
      Claim(Tier::kPinned, order.slot, n);
      transfers_->guess(x.pinned_guess).slot = order.slot;
    }
  } else if (options_.exclusive && x.device >= 0) {
    Refuse(Tier::kPinned, order.slot, n, true);  // it would lie in two places
  } else {
    Enqueue(n, order);
  }
}

void TieredExpertCache::Enqueue(std::int32_t n, const api::FetchOrder& order) {
  // For a layer that this walk has not come to yet, or for the next walk.
  const std::int64_t sweep = order.key.layer > position_ ? sweep_ : sweep_ + 1;
  const std::int32_t id = transfers_->Enqueue({.expert = n,
                                               .tier = order.tier,
                                               .slot = order.slot,
                                               .reason = order.reason,
                                               .layer = order.key.layer,
                                               .sweep = sweep});
  if (id < 0) {
    Refuse(order.tier, order.slot, n, true);
    return;
  }
  Claim(order.tier, order.slot, n);
  GuessOf(order.tier, n) = id;
}

void TieredExpertCache::LayerPassed(std::int32_t layer) {
  Scope scope(*transfers_);
  Passed(layer);
}

void TieredExpertCache::Passed(std::int32_t layer) {
  if (layer != position_) {
    Touch(layer);
  }
  passed_ = true;
  const auto late = [&](std::int32_t id) {
    const Guess& guess = transfers_->guess(id);
    return guess.tier == Tier::kDevice && guess.state != Guess::State::kOnLink &&
           (guess.sweep < sweep_ || (guess.sweep == sweep_ && guess.layer <= layer));
  };
  const auto cancel = [&](std::int32_t id) {
    const Guess guess = transfers_->guess(id);
    TakeBack(Tier::kDevice, guess.expert, true);
    Refuse(Tier::kDevice, guess.slot, guess.expert, true);
  };
  // Backwards, since both lists shrink.
  for (std::size_t i = transfers_->waiting().size(); i-- > 0;) {
    if (const std::int32_t id = transfers_->waiting()[i]; late(id)) {
      cancel(id);
    }
  }
  for (std::size_t i = transfers_->active().size(); i-- > 0;) {
    if (const std::int32_t id = transfers_->active()[i]; late(id)) {
      cancel(id);
    }
  }
  transfers_->GiveUpHung([&](const Copy& copy) {
    const Places& its = copy.purpose == Copy::Purpose::kDevice   ? device_
                        : copy.purpose == Copy::Purpose::kDemote ? host_
                                                                 : pinned_;
    return its[copy.target_place].leased();  // who leases it sees the time pass
  });
}

absl::Span<const ExpertCache::Vacated> TieredExpertCache::TakeVacated() {
  Scope scope(*transfers_);
  handed_out_.clear();
  std::swap(handed_out_, vacated_);
  return handed_out_;
}

void TieredExpertCache::Describe(api::LaneState& lanes) const {
  Scope scope(*transfers_);
  lanes.link_seconds_per_expert = transfers_->seconds_per_blob(base::CopyDirection::kHostToDevice);
  lanes.link_queue_seconds = transfers_->link_queue_seconds();
  lanes.queued_guesses = transfers_->queued_guesses();
}

std::int32_t TieredExpertCache::copies_under_way() const {
  Scope scope(*transfers_);
  return transfers_->copies_under_way();
}

}  // namespace comoe::experts
