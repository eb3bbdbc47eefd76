// The places of one tier: where a blob may lie, cut from one slab.
//
// The director speaks of slots; bytes lie in places. Which place a slot means may change without a copy, so
// that an expert that is evicted can stay where it is until it has been read, while the newcomer arrives in a
// spare place. Places that no slot means are spares: staging, and room for such moves.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/stage.h"
#include "engine/device/device.h"
#include "engine/experts/transfer_engine.h"

namespace comoe::experts {

// The last reads of a place's bytes, all of which whoever overwrites them waits for. One stream's reads are
// in order, so that its last one stands for all.
class Readers {
 public:
  void AddCopy(Lane lane, device::Event event) { copies_[static_cast<std::size_t>(lane)] = std::move(event); }
  // By kernels, of one stream or of two in turn.
  void AddUse(const device::Event& event) {
    if (event.Done()) {
      return;
    }
    uses_[next_use_] = event;
    next_use_ = 1 - next_use_;
  }
  bool Done() const {
    bool done = true;
    ForEach([&](const device::Event& event) { done = done && event.Done(); });
    return done;
  }
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const device::Event& event : copies_) {
      visit(event);
    }
    for (const device::Event& event : uses_) {
      visit(event);
    }
  }
  void Clear() {
    copies_.fill(device::Event());
    uses_.fill(device::Event());
  }
  static constexpr std::size_t kMost = kNumLanes + 2;

 private:
  std::array<device::Event, kNumLanes> copies_;
  std::array<device::Event, 2> uses_;
  std::size_t next_use_ = 0;
};

struct Place {
  std::byte* data = nullptr;
  std::int32_t expert = kNone;   // whose bytes lie here, or are on their way
  std::int32_t slot = kNone;     // the slot that means this place; kNone: spare
  std::int32_t inbound = kNone;  // the copy that brings the bytes
  bool usable = true;            // false: a copy may write here for ever
  bool transient = false;        // the expert only passes through
  bool held = false;             // for a guess that is being staged
  bool leaving = false;          // the expert is being copied to where it will stay
  bool failed = false;           // the bytes never came, and somebody has yet to notice
  bool undecided = false;        // prefetched, and not used so far
  base::WaitEdge edge = base::WaitEdge::kDemandCopy;
  device::Event arrived;
  Readers readers;
  std::uint64_t taken = 0;  // when it was taken last, in places taken
  std::atomic<std::int32_t> pins{0};

  bool leased() const { return pins.load(std::memory_order_acquire) > 0; }
  // The bytes lie here and may be copied from.
  bool there() const { return expert >= 0 && !transient && inbound < 0 && !failed; }
};

struct Slot {
  std::int32_t place = kNone;
  std::int32_t expert = kNone;  // whom the director put here
  bool usable = true;
  bool listed = false;  // among those that may be empty
};

class Places {
 public:
  Places() = default;
  // `slots` places with a slot each, then `spares`, then `reserves`: spares that stand in for lost ones. The
  // slab has (slots + spares + reserves) * stride bytes.
  Places(device::Buffer slab, std::size_t stride, std::int32_t slots, std::int32_t spares,
         std::int32_t reserves)
      : slab_(std::move(slab)),
        stride_(stride),
        count_(slots + spares + reserves),
        first_reserve_(slots + spares),
        places_(std::make_unique<Place[]>(static_cast<std::size_t>(count_))),
        slots_(static_cast<std::size_t>(slots)) {
    for (std::int32_t i = 0; i < count_; ++i) {
      (*this)[i].data = slab_.data() + static_cast<std::size_t>(i) * stride_;
      if (i < slots) {
        (*this)[i].slot = i;
        slot(i).place = i;
      } else if (i < first_reserve_) {
        spares_.push_back(i);
      }
    }
    spares_.reserve(static_cast<std::size_t>(spares + reserves));
  }

  // Something may write to place i for ever.
  void Lose(std::int32_t i) {
    if ((*this)[i].usable && (*this)[i].slot < 0 && first_reserve_ < count_) {
      spares_.push_back(first_reserve_++);
    }
    (*this)[i].usable = false;
  }

  std::int32_t size() const { return count_; }
  Place& operator[](std::int32_t i) { return places_[static_cast<std::size_t>(i)]; }
  const Place& operator[](std::int32_t i) const { return places_[static_cast<std::size_t>(i)]; }
  std::int32_t num_slots() const { return static_cast<std::int32_t>(slots_.size()); }
  bool HasSlot(std::int32_t s) const { return s >= 0 && s < num_slots(); }
  Slot& slot(std::int32_t s) { return slots_[static_cast<std::size_t>(s)]; }
  const Slot& slot(std::int32_t s) const { return slots_[static_cast<std::size_t>(s)]; }
  Place& at_slot(std::int32_t s) { return (*this)[slot(s).place]; }
  const std::vector<std::int32_t>& spares() const { return spares_; }
  std::int32_t num_usable_spares() const {
    std::int32_t count = 0;
    for (const std::int32_t i : spares_) {
      count += (*this)[i].usable ? 1 : 0;
    }
    return count;
  }

  // Takes the slab away, and with it all that is here.
  device::Buffer TakeSlab() { return std::move(slab_); }

  bool page_locked() const { return slab_.kind() == device::MemoryKind::kPinned; }
  std::size_t stride() const { return stride_; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(count_) * stride_; }
  // Of what is not meant by a slot.
  std::uint64_t spare_bytes() const { return static_cast<std::size_t>(count_ - num_slots()) * stride_; }

  // kNone: the byte lies elsewhere.
  std::int32_t IndexOf(const std::byte* data) const {
    if (count_ == 0 || data < slab_.data() || data >= slab_.data() + bytes()) {
      return kNone;
    }
    return static_cast<std::int32_t>(static_cast<std::size_t>(data - slab_.data()) / stride_);
  }

  // From now on slot `s` means `place`, and what meant that gets what `s` meant.
  void GiveTo(std::int32_t s, std::int32_t place) {
    const std::int32_t before = slot(s).place;
    if (before == place) {
      return;
    }
    const std::int32_t other = (*this)[place].slot;
    if (other >= 0) {
      slot(other).place = before;
    } else {
      for (std::int32_t& spare : spares_) {
        spare = spare == place ? before : spare;
      }
    }
    (*this)[before].slot = other;
    slot(s).place = place;
    (*this)[place].slot = s;
  }

  // The spare that `may_take` lets be taken: one that nobody reads or writes any more if there is one, else
  // the one that was taken longest ago. kNone: none.
  template <typename MayTake>
  std::int32_t FindSpare(MayTake may_take) const {
    std::int32_t best = kNone;
    bool best_idle = false;
    for (const std::int32_t i : spares_) {
      const Place& place = (*this)[i];
      if (!place.usable || place.held || place.leased() || !may_take(place)) {
        continue;
      }
      const bool idle = place.inbound < 0 && place.readers.Done();
      if (best < 0 || (idle && !best_idle) || (idle == best_idle && place.taken < (*this)[best].taken)) {
        best = i;
        best_idle = idle;
      }
    }
    return best;
  }

  std::int64_t leases() const {
    std::int64_t sum = 0;
    for (std::int32_t i = 0; i < count_; ++i) {
      sum += (*this)[i].pins.load(std::memory_order_acquire);
    }
    return sum;
  }
  // Experts that lie here to stay, or will.
  std::uint64_t used() const {
    std::uint64_t sum = 0;
    for (std::int32_t i = 0; i < count_; ++i) {
      sum += (*this)[i].expert >= 0 && !(*this)[i].transient ? 1 : 0;
    }
    return sum;
  }

 private:
  device::Buffer slab_;
  std::size_t stride_ = 0;
  std::int32_t count_ = 0;
  std::int32_t first_reserve_ = 0;  // not in use yet
  std::unique_ptr<Place[]> places_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> spares_;
};

}  // namespace comoe::experts
