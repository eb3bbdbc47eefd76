// Experts in tiers: some on the device, some in page-locked memory, all or the rest in host memory or in a
// file. The director says which expert each slot of the first two is for; this carries it out.
//
// Inclusive: the lowest tier has every expert and the ones above are copies, so that what makes room is
// simply overwritten. Where page-locked memory holds all, it is the lowest tier. Exclusive: an expert lies in
// one place (or in the file), so that what makes room has to be copied: the newcomer goes to a spare place
// that then is the slot, and the one before is copied out of the way behind its back, down to where there is
// room. An expert's old place becomes free when it has arrived at the new one, so that no failing copy loses
// it.
//
// An order that is only queued changes nothing yet: what lay in the slot still does, though the director no
// longer counts on it. If it is asked for before it is overwritten, it is found, and costs no copy.
//
// Owned by the engine thread; what ends meanwhile is handled on the device's threads, within a scope of the
// TransferEngine, which guards all state here. Steps allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/expert_packer.h"
#include "engine/checkpoint/model_config.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"
#include "engine/experts/packed_file.h"
#include "engine/experts/pinned_keep.h"
#include "engine/experts/places.h"
#include "engine/experts/resident_cache.h"
#include "engine/experts/transfer_engine.h"

namespace comoe::experts {

struct TieredOptions {
  std::int32_t device_slots = 0;
  // >= 1. Experts that pass through: as many fetches without a slot can be under way in a layer.
  std::int32_t device_staging_slots = 2;
  std::int32_t pinned_slots = 0;
  // >= 1. On the way from host memory or the file, and what the host lane reads from the file. Guesses and
  // the host lane leave one, so that with 1 they get nothing from there.
  std::int32_t pinned_staging_slots = 8;
  // false: the slots of the tier `pinned` lie in ordinary memory, which shows what page-locking is worth:
  // every copy to the device is slow, and holds up who queues it.
  bool page_lock = true;
  bool exclusive = false;
  // Exclusive: spare places of each tier, so many swaps can be under way; what is beyond goes through
  // staging.
  std::int32_t exclusive_spares = 8;
  // Not empty: the lowest tier is this file, written when it is not there or not of this model.
  std::string packed_path;
  bool verify_packed = false;  // read it all at start
  TransferOptions transfers;
  // The tier `pinned` that an earlier cache has left there is used with the experts in it, and left there
  // again in the end, where it holds all experts and no copy has ever hung. nullptr: nothing is kept.
  std::shared_ptr<PinnedKeep> keep;
};

// What experts are loaded from.
struct TieredSource {
  const checkpoint::TensorSource& tensors;
  const checkpoint::WeightNames& names;
  base::ThreadPool& pool;
  std::vector<api::FetchOrder> orders;  // ExpertDirector::InitialOrders
  LoadProgress progress;
};

class TieredExpertCache final : public ExpertCache, private TransferEngine::Client {
 public:
  // Reserves all memory. Where not as much page-locked memory can be had, there are fewer pinned slots, and
  // the log says so. RESOURCE_EXHAUSTED when the device's or the host's memory is too small.
  static absl::StatusOr<std::unique_ptr<TieredExpertCache>> Create(const checkpoint::ModelConfig& config,
                                                                   tensor::DType dtype,
                                                                   const TieredOptions& options,
                                                                   device::Device& device);
  // No lease is alive. Waits for its copies, and fills options.keep.
  ~TieredExpertCache() override;

  // As reserved.
  std::int32_t device_slots() const { return device_.num_slots(); }
  std::int32_t pinned_slots() const { return pinned_.num_slots(); }

  // Packs all experts to where they lie at first, a layer at a time; once, before anything else. Peak memory
  // is what was reserved plus one layer. INVALID_ARGUMENT for an order that cannot be carried out.
  absl::Status Load(const TieredSource& source);

  void UseStream(device::Stream* stream) override {
    transfers_->UseStream(pinned_.page_locked() ? nullptr : stream);
  }
  // An expert that was lost since TakeVacated was called last is fetched through staging;
  // RESOURCE_EXHAUSTED when that is all leased.
  absl::StatusOr<Served> Acquire(base::ExpertKey key) override;
  absl::StatusOr<std::optional<Served>> Fetch(base::ExpertKey key, std::int32_t slot) override;
  std::optional<device::Event> UnderWay() override;
  // RESOURCE_EXHAUSTED when the expert is in the file only and all staging slots are leased;
  // FAILED_PRECONDITION when it is on the device only.
  absl::StatusOr<Served> AcquireHost(base::ExpertKey key) override;
  void Release(Lease lease, const device::Event& last_use) override;
  bool LayerIsThere(std::int32_t layer) override;
  std::optional<LayerPlaces> LeaseLayer(std::int32_t layer) override;
  void ReleaseLayer(std::int32_t layer, const device::Event& last_use) override;
  void CountHits(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void Prefetch(absl::Span<const api::FetchOrder> orders) override;
  void LayerPassed(std::int32_t layer) override;
  void Failed(Lease lease, const absl::Status& status) override;
  absl::Span<const Vacated> TakeVacated() override;
  void Describe(api::LaneState& lanes) const override;
  void AddTotals(api::OffloadTotals& totals) const override;
  absl::Span<const api::CopySample> TakeCopySamples() override;
  const tensor::BlobLayout& layout() const override { return index_.layout(); }
  std::int64_t leased() const override {
    return device_.leases() + pinned_.leases() + host_.leases() + leased_layers_;
  }

  // Copies that have not ended, guesses included that are on their way.
  std::int32_t copies_under_way() const;
  // A table for people: tiers, slots, bytes, rates; its bytes sum to what was reserved.
  std::string DescribeTiers() const;
  // INTERNAL says which expert is nowhere, or (exclusive) in two places, or where the books disagree.
  absl::Status CheckPlaces() const;

 private:
  // Where an expert lies; kNone: not in that tier.
  struct Expert {
    std::int32_t device = kNone;  // places
    std::int32_t pinned = kNone;
    std::int32_t host = kNone;
    std::int32_t device_slot = kNone;  // that the director gave it
    std::int32_t pinned_slot = kNone;
    std::int32_t device_guess = kNone;  // not on the link yet
    std::int32_t pinned_guess = kNone;
  };
  // All experts of a layer, which may be leased together. Constant but where it says otherwise.
  struct Layer {
    std::int32_t first = kNone;            // the number of its expert 0; kNone: a dense layer
    std::uint64_t changes = 1;             // of where its experts lie, or are to lie; counted
    std::uint64_t checked = 0;             // `changes` when the two below were found
    bool there = false;                    // all are in device slots
    std::vector<std::uint64_t> addresses;  // [E]
    std::int32_t leases = 0;               // counted
    device::Event last_use;                // of the lease that ended last
  };
  struct Spot {
    base::Tier tier = base::Tier::kDisk;  // kDisk: the file
    std::int32_t place = kNone;
  };
  struct Move {
    Copy::Purpose purpose = Copy::Purpose::kDevice;
    Lane lane = Lane::kDemand;
    base::CopyReason reason = base::CopyReason::kDemand;
    std::int32_t expert = kNone;
    Spot from;
    Spot to;
    std::int32_t guess = kNone;
    bool transient = false;
  };
  // Where a newcomer to the device goes.
  struct Target {
    std::int32_t place = kNone;
    std::int32_t slot = api::kStagingSlot;
    bool refused = false;  // the slot could not be had
    bool later = false;    // but can be soon
    bool unusable = false;
  };

  // Staging places that guesses and the host lane leave, so that a fetch is always possible.
  static constexpr std::int32_t kForFetches = 1;

  TieredExpertCache(checkpoint::ModelConfig config, checkpoint::ExpertIndex index, tensor::DType dtype,
                    const TieredOptions& options, device::Device& device);
  absl::Status Reserve();
  absl::Status ReservePinned();
  absl::Status ReserveHost();

  // tiered_keep.cc. PinnedIsFixed: pinned memory with so many slots holds all experts, which stay where they
  // are.
  bool PinnedIsFixed(std::int32_t slots) const;
  PinnedKeep::Content PinnedContent() const;
  std::optional<device::Buffer> TakeKept(std::int32_t slots, device::MemoryKind kind, std::size_t bytes,
                                         std::size_t stride);
  void KeepPinned();

  // tiered_cache.cc
  absl::StatusOr<std::int32_t> NumberOf(base::ExpertKey key) const;
  base::ExpertKey key(std::int32_t n) const { return index_.keys()[static_cast<std::size_t>(n)]; }
  Expert& expert(std::int32_t n) { return experts_[static_cast<std::size_t>(n)]; }
  const Expert& expert(std::int32_t n) const { return experts_[static_cast<std::size_t>(n)]; }
  Places& places(base::Tier tier);
  Place& at(Spot spot) { return places(spot.tier)[spot.place]; }
  std::int32_t& PlaceOf(base::Tier tier, std::int32_t n);
  std::int32_t& SlotOf(base::Tier tier, std::int32_t n);
  std::int32_t& GuessOf(base::Tier tier, std::int32_t n);
  Spot Find(const std::byte* data) const;
  void Touch(std::int32_t layer);
  void Passed(std::int32_t layer);
  Served Serve(Spot spot);
  void CountMiss(std::int32_t n);
  bool JustVacated(base::ExpertKey key) const;
  absl::StatusOr<std::int32_t> Promote(std::int32_t n);
  void OrderToDevice(std::int32_t n, const api::FetchOrder& order);
  void OrderToPinned(std::int32_t n, const api::FetchOrder& order);
  void Enqueue(std::int32_t n, const api::FetchOrder& order);

  // tiered_layers.cc
  void FindLayers();
  Layer& LayerOf(std::int32_t n) { return layers_[static_cast<std::size_t>(key(n).layer)]; }
  const Layer& LayerOf(std::int32_t n) const { return layers_[static_cast<std::size_t>(key(n).layer)]; }
  bool CheckLayer(std::int32_t layer);
  // Something that CheckLayer looks at has changed for expert n.
  void Changed(base::Tier tier, std::int32_t n) {
    if (tier == base::Tier::kDevice) {
      ++LayerOf(n).changes;
    }
  }
  // Whether a device place is leased, by itself or with its layer.
  bool InUse(const Place& place) const {
    return place.leased() || (place.expert >= 0 && !place.transient && LayerOf(place.expert).leases > 0);
  }
  // Before the expert leaves a device place: whoever overwrites it waits for what used the whole layer.
  void KeepLastUse(Place& place);

  // tiered_moves.cc: what starts copies.
  TransferEngine::Start StartGuess(std::int32_t id) override;
  // Its place; kNone: there is none now. An error leaves it to the caller to refuse the slot.
  absl::StatusOr<std::int32_t> ToDevice(std::int32_t n, std::int32_t slot, base::CopyReason reason, Lane lane,
                                        std::int32_t staged);
  Target ChooseTarget(std::int32_t n, std::int32_t slot, bool from_pinned) const;
  absl::Status StartDeviceCopy(std::int32_t n, Spot from, const Target& target, base::CopyReason reason,
                               Lane lane, std::int32_t guess);
  TransferEngine::Start StartPromotion(std::int32_t id);
  absl::Status StartMove(const Move& move);
  std::int32_t FindPinnedSpare(std::int32_t left) const;
  std::int32_t KeptForStaging() const;

  // tiered_ends.cc: what their ends mean, and what moves because of them.
  void OnCopied(std::int32_t id, const Copy& copy, const absl::Status& status, bool hung) override;
  void Settle() override;
  void FinishGuess(const Copy& copy, const absl::Status& status);
  void CountPrefetched(const Copy& copy, const Place& target, bool current);
  // Current: the place still is what the copy was to fill.
  void FinishEviction(const Copy& copy, const absl::Status& status, bool current, bool hung);
  void SettleExpert(std::int32_t n);
  void SettleDevice();
  void SettlePinned();
  std::int32_t FindEmptyPinnedSlot();
  std::int32_t FindFreeHost() const;

  // tiered_books.cc. Claim: slot `s` is for expert n from now on.
  void Claim(base::Tier tier, std::int32_t s, std::int32_t n);
  void Unclaim(base::Tier tier, std::int32_t n);
  void Report(base::Tier tier, std::int32_t slot, std::int32_t n, bool usable);
  // The director's order came to nothing.
  void Refuse(base::Tier tier, std::int32_t slot, std::int32_t n, bool usable);
  // The expert's bytes are no longer at the spot.
  void Clear(Spot spot);
  // Exclusive: experts that come to page-locked memory may settle there.
  void ListEmpty(std::int32_t slot);
  // Clear, and the director learns of it.
  void Vacate(Spot spot, bool usable);
  // Takes a guess back that is not on the link; the place that it was staged to, if any.
  std::int32_t TakeBack(base::Tier tier, std::int32_t n, bool cancelled);
  bool Droppable(base::Tier tier, std::int32_t n) const;

  // tiered_load.cc
  void PutInPinnedSlot(std::int32_t slot, std::int32_t n);
  absl::Status Plan(absl::Span<const api::FetchOrder> orders, std::vector<std::int32_t>& device_order);
  absl::Status PlanExclusive(std::vector<std::int32_t>& device_order);
  absl::Status LoadFile(const TieredSource& source);
  absl::Status LoadMemory(const TieredSource& source);
  absl::Status PackLayer(const TieredSource& source, absl::Span<const std::int32_t> layer);
  absl::Status PackThroughStaging(const TieredSource& source, absl::Span<const std::int32_t> experts);
  // One copy to the device, or several, after the other, and their end.
  absl::Status WarmDevice(absl::Span<const std::int32_t> experts);
  void PutAt(Spot spot, std::int32_t n);

  const checkpoint::ModelConfig config_;
  const checkpoint::ExpertIndex index_;
  const tensor::DType dtype_;
  const TieredOptions options_;
  const bool disk_;
  device::Device& accelerator_;
  std::unique_ptr<PackedFile> file_;

  Places device_;
  Places pinned_;
  Places host_;
  std::vector<Expert> experts_;
  std::vector<Layer> layers_;
  std::int64_t leased_layers_ = 0;
  std::vector<std::int32_t> free_host_;
  std::vector<std::int32_t> empty_pinned_slots_;  // or taken again; each at most once
  std::uint64_t taken_ = 0;
  bool loaded_ = false;
  std::vector<std::int32_t> kept_;  // where an earlier cache has packed each expert; empty: none has

  // Which walk over the layers this is, and how far it has come.
  std::int64_t sweep_ = 0;
  std::int32_t position_ = -1;
  bool passed_ = true;  // the layer at `position_`

  std::vector<Vacated> vacated_;
  std::vector<Vacated> handed_out_;

  struct Lookups {
    std::uint64_t hits = 0, misses = 0, evictions = 0;
  };
  base::PerKind<Lookups, base::kNumTiers> lookups_;
  std::uint64_t prefetch_used_bytes_ = 0;
  std::uint64_t prefetch_wasted_bytes_ = 0;
  std::uint64_t prefetch_pending_bytes_ = 0;
  std::uint64_t lost_slots_ = 0;

  // Last: it waits for its copies, whose ends are told to all of the above.
  std::unique_ptr<TransferEngine> transfers_;
};

}  // namespace comoe::experts
