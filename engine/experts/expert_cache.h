// The only way to an expert's bytes: Acquire gives a lease, and while the lease lives the bytes stay where
// they are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/api/offload.h"
#include "engine/base/ids.h"
#include "engine/base/stage.h"
#include "engine/device/device.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::experts {

// RAII pin of one expert's slot. Move-only. While work that reads the bytes may still be queued it is given
// back by ExpertCache::Release, with the event of the last use; it may die only once that has happened. Not
// thread-safe; belongs to the engine thread. The cache outlives its leases.
class Lease {
 public:
  Lease() = default;
  Lease(base::ExpertKey key, tensor::ExpertView view, std::atomic<std::int32_t>* pins)
      : key_(key), view_(view), pins_(pins) {
    pins_->fetch_add(1, std::memory_order_relaxed);
  }
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      Release();
      key_ = other.key_;
      view_ = other.view_;
      pins_ = std::exchange(other.pins_, nullptr);
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { Release(); }

  base::ExpertKey key() const { return key_; }
  const tensor::ExpertView& view() const { return view_; }

 private:
  void Release() {
    if (pins_ != nullptr) {
      std::exchange(pins_, nullptr)->fetch_sub(1, std::memory_order_release);
    }
  }

  base::ExpertKey key_;
  tensor::ExpertView view_;
  std::atomic<std::int32_t>* pins_ = nullptr;
};

// A lease on bytes that may still be arriving.
struct Served {
  Lease lease;
  device::Event ready;  // the bytes are there once it has happened; its error: they never will be
  base::WaitEdge edge = base::WaitEdge::kDemandCopy;  // what waiting for `ready` is
};

// Where all experts of a layer lie on the device.
struct LayerPlaces {
  absl::Span<const std::uint64_t> addresses;  // [E]; valid until the cache is asked for the layer again
  std::uint64_t version = 0;                  // other addresses have another one; never 0
};

// Owned by the engine thread.
class ExpertCache {
 public:
  virtual ~ExpertCache() = default;

  // The compute stream that the owner queues work on, from now on; nullptr: none any more. It hears
  // (device::HoldUp) of copies that hold up the owner, as those from memory that is not page-locked do. While
  // it is set nobody else calls anything here, unless the owner rests.
  virtual void UseStream(device::Stream* /*stream*/) {}

  // Bytes on the device of an expert that the director's slot map says is there or on its way. NOT_FOUND for
  // a key the model does not have, FAILED_PRECONDITION when it is not there after all.
  virtual absl::StatusOr<Served> Acquire(base::ExpertKey key) = 0;

  // Starts to copy a missing expert to device slot `slot`, or through a staging slot (api::kStagingSlot).
  // nullopt: all staging slots are leased, or copies under way have them; release one or wait for one
  // (UnderWay), and ask again. An error: it cannot be had; TakeVacated tells of the slot.
  virtual absl::StatusOr<std::optional<Served>> Fetch(base::ExpertKey key, std::int32_t slot) = 0;

  // A copy under way: once it has ended, Fetch may find a place. An event that has happened: copies have
  // ended since this was last asked, ask again now. nullopt: none have, and none is under way.
  virtual std::optional<device::Event> UnderWay() { return std::nullopt; }

  // Bytes in host memory, for the host lane.
  virtual absl::StatusOr<Served> AcquireHost(base::ExpertKey key) = 0;

  // Ends a lease although work that reads the bytes may still be queued: they stay until `last_use` has
  // happened.
  virtual void Release(Lease lease, const device::Event& last_use) = 0;

  // Whether every expert of `layer` lies in a device slot, its copy done. Cheap while that changes for none
  // of them.
  virtual bool LayerIsThere(std::int32_t /*layer*/) { return false; }
  // If so, leases all of them at once: none moves until ReleaseLayer. Several layers can be leased. nullopt:
  // not all are there.
  virtual std::optional<LayerPlaces> LeaseLayer(std::int32_t /*layer*/) { return std::nullopt; }
  // Ends the lease of a layer, which has passed: the bytes stay until `last_use` has happened.
  virtual void ReleaseLayer(std::int32_t /*layer*/, const device::Event& /*last_use*/) {}
  // Which of its experts, each named once, a layer that was leased has used: for the sums.
  virtual void CountHits(std::int32_t /*layer*/, absl::Span<const std::int32_t> /*experts*/) {}

  // Starts, or queues, copies ahead of need. What cannot be done is dropped, and reported by TakeVacated.
  virtual void Prefetch(absl::Span<const api::FetchOrder> orders) = 0;

  // Of guesses still waiting for the link, those for layers up to `layer` come too late for this step.
  virtual void LayerPassed(std::int32_t layer) = 0;

  // The bytes never arrived (Served::ready failed or timed out): the slot is given up, and reported by
  // TakeVacated.
  virtual void Failed(Lease lease, const absl::Status& status) = 0;

  struct Vacated {
    base::Tier tier;
    std::int32_t slot;
    base::ExpertKey key;
    bool usable;
  };
  // Slots that do not hold what the director put there, since the last call.
  virtual absl::Span<const Vacated> TakeVacated() = 0;

  // Link rates and queues; the engine adds the rest.
  virtual void Describe(api::LaneState& lanes) const = 0;
  // Tiers, copies, guesses; times and served_* are the engine's.
  virtual void AddTotals(api::OffloadTotals& totals) const = 0;

  // Copies that ended since the last call; of very many, the first ones. Valid until the next call.
  virtual absl::Span<const api::CopySample> TakeCopySamples() { return {}; }

  // Of every blob.
  virtual const tensor::BlobLayout& layout() const = 0;
  // Leases alive: 0 between steps.
  virtual std::int64_t leased() const = 0;
};

}  // namespace comoe::experts
