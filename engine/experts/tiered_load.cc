// What is reserved, and what lies where at first.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/bytes.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::Tier;
using Scope = TransferEngine::Scope;

namespace {

// Stands in for a staging slot whose copy never ended: one slab has no other room.
constexpr std::int32_t kReserves = 1;

std::size_t Aligned(std::size_t bytes, std::size_t alignment) {
  return static_cast<std::size_t>(base::AlignUp(bytes, alignment));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TieredExpertCache>> TieredExpertCache::Create(
    const checkpoint::ModelConfig& config, tensor::DType dtype, const TieredOptions& options,
    device::Device& device) {
  checkpoint::ExpertIndex index = checkpoint::ExpertIndex::Make(config, dtype);
  if (index.keys().empty()) {
    return absl::InvalidArgumentError("the model has no routed experts to keep in tiers");
  }
  if (options.device_slots < 0 || options.pinned_slots < 0 || options.device_staging_slots < 1 ||
      options.pinned_staging_slots < 1 || options.exclusive_spares < 1) {
    return absl::InvalidArgumentError("tiers: slots must not be negative, and staging not empty");
  }
  std::unique_ptr<TieredExpertCache> cache(
      new TieredExpertCache(config, std::move(index), dtype, options, device));
  COMOE_RETURN_IF_ERROR(cache->Reserve());
  COMOE_ASSIGN_OR_RETURN(cache->transfers_, TransferEngine::Create(device, cache->index_.layout().bytes,
                                                                   options.transfers, *cache));
  return cache;
}

TieredExpertCache::TieredExpertCache(checkpoint::ModelConfig config, checkpoint::ExpertIndex index,
                                     tensor::DType dtype, const TieredOptions& options,
                                     device::Device& device)
    : config_(std::move(config)),
      index_(std::move(index)),
      dtype_(dtype),
      options_(options),
      disk_(!options.packed_path.empty()),
      accelerator_(device),
      experts_(index_.keys().size()) {
  const std::size_t most = static_cast<std::size_t>(options.transfers.queue_capacity) + 64;
  vacated_.reserve(most);
  handed_out_.reserve(most);
  FindLayers();
}

absl::Status TieredExpertCache::Reserve() {
  const auto all = static_cast<std::int32_t>(experts_.size());
  const std::int32_t slots = std::min(options_.device_slots, all);
  const std::int32_t spares =
      options_.device_staging_slots + (options_.exclusive ? options_.exclusive_spares : 0);
  const std::size_t stride = index_.layout().bytes;
  absl::StatusOr<device::Buffer> slab = accelerator_.Allocate(
      device::MemoryKind::kDevice, static_cast<std::size_t>(slots + spares + kReserves) * stride,
      tensor::kWeightAlignment);
  if (!slab.ok()) {
    return base::Annotate(
        slab.status(), absl::StrCat("expert slots on the device: ", slots, " and ", spares, " for staging"));
  }
  device_ = Places(*std::move(slab), stride, slots, spares, kReserves);
  COMOE_RETURN_IF_ERROR(ReservePinned());
  return ReserveHost();
}

absl::Status TieredExpertCache::ReservePinned() {
  const std::int32_t asked = std::min(options_.pinned_slots, static_cast<std::int32_t>(experts_.size()));
  const std::int32_t spares =
      options_.pinned_staging_slots + (options_.exclusive ? options_.exclusive_spares : 0);
  // Direct I/O writes whole pages.
  const std::size_t alignment = disk_ ? kFileAlignment : tensor::kWeightAlignment;
  const std::size_t stride = Aligned(index_.layout().bytes, alignment);
  const auto bytes = [&](std::int32_t slots) {
    return static_cast<std::size_t>(slots + spares + kReserves) * stride;
  };
  const device::MemoryKind kind =
      options_.page_lock ? device::MemoryKind::kPinned : device::MemoryKind::kHost;
  if (std::optional<device::Buffer> kept = TakeKept(asked, kind, bytes(asked), stride); kept.has_value()) {
    pinned_ = Places(*std::move(kept), stride, asked, spares, kReserves);
    return absl::OkStatus();
  }
  std::int32_t slots = asked;
  absl::StatusOr<device::Buffer> slab = accelerator_.Allocate(kind, bytes(slots), alignment);
  while (!slab.ok() && slots > 0 && options_.page_lock) {
    slots /= 2;
    slab = accelerator_.Allocate(kind, bytes(slots), alignment);
  }
  if (!slab.ok() && !options_.page_lock) {
    return base::Annotate(slab.status(), absl::StrCat("host memory for ", slots, " experts"));
  }
  if (!slab.ok()) {
    base::Logf(
        base::LogLevel::kWarning, "experts",
        "no memory can be page-locked, not even %s (%s): experts are staged in pageable memory, so that "
        "every copy is slow and overlaps with nothing. Raise the limit of locked memory (ulimit -l)",
        base::FormatBytes(bytes(0)), std::string(slab.status().message()));
    COMOE_ASSIGN_OR_RETURN(slab, accelerator_.Allocate(device::MemoryKind::kHost, bytes(0), alignment));
  } else if (slots < asked) {
    base::Logf(base::LogLevel::kWarning, "experts",
               "%s of page-locked memory were asked for and %s could be had: %d expert slots instead of %d",
               base::FormatBytes(bytes(asked)), base::FormatBytes(bytes(slots)), slots, asked);
  }
  pinned_ = Places(*std::move(slab), stride, slots, spares, kReserves);
  empty_pinned_slots_.reserve(static_cast<std::size_t>(slots));
  return absl::OkStatus();
}

absl::Status TieredExpertCache::ReserveHost() {
  const auto all = static_cast<std::int32_t>(experts_.size());
  std::int32_t count = all;
  if (disk_ || PinnedIsFixed(pinned_.num_slots())) {
    count = 0;
  } else if (options_.exclusive) {
    count = std::max(0, all - device_.num_slots() - pinned_.num_slots());
    count += count > 0 ? options_.exclusive_spares : 0;
  }
  if (count == 0) {
    return absl::OkStatus();
  }
  const std::size_t stride = index_.layout().bytes;
  absl::StatusOr<device::Buffer> slab = accelerator_.Allocate(
      device::MemoryKind::kHost, static_cast<std::size_t>(count) * stride, tensor::kWeightAlignment);
  if (!slab.ok()) {
    return base::Annotate(slab.status(), absl::StrCat("host memory for ", count, " experts"));
  }
  host_ = Places(*std::move(slab), stride, 0, count, 0);
  free_host_.reserve(static_cast<std::size_t>(count));
  for (std::int32_t i = count; i-- > 0;) {
    free_host_.push_back(i);
  }
  return absl::OkStatus();
}

absl::Status TieredExpertCache::Load(const TieredSource& source) {
  std::vector<std::int32_t> device_order;
  COMOE_RETURN_IF_ERROR(Plan(source.orders, device_order));
  if (kept_.empty()) {
    COMOE_RETURN_IF_ERROR(disk_ ? LoadFile(source) : LoadMemory(source));
  }
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    const auto n = static_cast<std::int32_t>(i);
    if (experts_[i].pinned >= 0 && experts_[i].pinned_slot >= 0) {
      continue;
    }
    if (experts_[i].pinned >= 0 && pinned_[experts_[i].pinned].slot >= 0) {
      Claim(Tier::kPinned, pinned_[experts_[i].pinned].slot, n);
    }
  }
  for (std::int32_t s = 0; options_.exclusive && s < pinned_.num_slots(); ++s) {
    if (pinned_.at_slot(s).expert < 0 && !std::exchange(pinned_.slot(s).listed, true)) {
      empty_pinned_slots_.push_back(s);
    }
  }
  COMOE_RETURN_IF_ERROR(WarmDevice(device_order));
  Scope scope(*transfers_);  // the notice of the last copy may be under way on another thread
  loaded_ = true;
  return absl::OkStatus();
}

void TieredExpertCache::PutAt(Spot spot, std::int32_t n) {
  at(spot).expert = n;
  PlaceOf(spot.tier, n) = spot.place;
  if (spot.tier == Tier::kHost) {
    free_host_.erase(std::find(free_host_.begin(), free_host_.end(), spot.place));
  }
}

// Where the expert is packed already, the slot means that place.
void TieredExpertCache::PutInPinnedSlot(std::int32_t slot, std::int32_t n) {
  if (!kept_.empty()) {
    pinned_.GiveTo(slot, kept_[static_cast<std::size_t>(n)]);
  }
  PutAt({Tier::kPinned, pinned_.slot(slot).place}, n);
}

// Claims the slots that the director names, and gives every expert its places in pinned and host memory,
// where the bytes are put then. device_order: who is to be copied to the device.
absl::Status TieredExpertCache::Plan(absl::Span<const api::FetchOrder> orders,
                                     std::vector<std::int32_t>& device_order) {
  for (const api::FetchOrder& order : orders) {
    COMOE_ASSIGN_OR_RETURN(const std::int32_t n, NumberOf(order.key));
    const bool device = order.tier == Tier::kDevice;
    if ((!device && order.tier != Tier::kPinned) || !places(order.tier).HasSlot(order.slot) ||
        places(order.tier).slot(order.slot).expert >= 0 || SlotOf(order.tier, n) >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("initial order: layer ", order.key.layer, " expert ",
                                                     order.key.expert, " cannot go to slot ", order.slot,
                                                     " of tier ", base::TierName(order.tier)));
    }
    if (!device && options_.exclusive && expert(n).device_slot >= 0) {
      continue;  // it lies on the device
    }
    Claim(order.tier, order.slot, n);
    if (device) {
      device_order.push_back(n);
    } else {
      PutInPinnedSlot(order.slot, n);
    }
  }
  if (options_.exclusive) {
    return PlanExclusive(device_order);
  }
  if (disk_) {
    return absl::OkStatus();
  }
  std::int32_t next = 0;
  for (std::int32_t n = 0; n < static_cast<std::int32_t>(experts_.size()); ++n) {
    if (host_.size() > 0) {
      PutAt({Tier::kHost, n}, n);
      continue;
    }
    // Page-locked memory holds all: slot i has expert i, where the director does not say otherwise.
    if (expert(n).pinned < 0) {
      std::int32_t slot = n;
      if (pinned_.at_slot(n).expert >= 0) {
        while (pinned_.at_slot(next).expert >= 0) {
          ++next;
        }
        slot = next;
      }
      PutInPinnedSlot(slot, n);
    }
  }
  return absl::OkStatus();
}

// Who is ordered nowhere lies in the host tier, and in slots that were left over where that is full.
absl::Status TieredExpertCache::PlanExclusive(std::vector<std::int32_t>& device_order) {
  for (const std::int32_t n : device_order) {
    if (expert(n).pinned >= 0) {  // ordered to both
      pinned_[expert(n).pinned].expert = kNone;
      expert(n).pinned = kNone;
      Unclaim(Tier::kPinned, n);
    }
  }
  if (disk_) {
    return absl::OkStatus();
  }
  std::int32_t pinned = 0;
  std::int32_t device = 0;
  std::int32_t left = host_.size() > 0 ? host_.size() - options_.exclusive_spares : 0;
  std::vector<std::int32_t> more;
  for (std::int32_t n = 0; n < static_cast<std::int32_t>(experts_.size()); ++n) {
    if (expert(n).device_slot >= 0 || expert(n).pinned >= 0) {
      continue;
    }
    if (left > 0) {
      --left;
      PutAt({Tier::kHost, free_host_.back()}, n);
      continue;
    }
    while (pinned < pinned_.num_slots() && pinned_.at_slot(pinned).expert >= 0) {
      ++pinned;
    }
    if (pinned < pinned_.num_slots()) {
      PutAt({Tier::kPinned, pinned}, n);
      continue;
    }
    while (device < device_.num_slots() && device_.slot(device).expert >= 0) {
      ++device;
    }
    if (device >= device_.num_slots()) {
      return absl::InternalError("exclusive tiers are too small for all experts");
    }
    // It lies there, though the director does not know.
    Claim(Tier::kDevice, device, n);
    more.push_back(n);
  }
  device_order.insert(device_order.end(), more.begin(), more.end());
  return absl::OkStatus();
}

absl::Status TieredExpertCache::LoadFile(const TieredSource& source) {
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t hash, ModelHash(source.tensors, config_, source.names));
  COMOE_ASSIGN_OR_RETURN(
      file_,
      PackedFile::OpenOrBuild(options_.packed_path, {source.tensors, config_, source.names, dtype_, hash},
                              options_.verify_packed, source.pool, source.progress));
  for (std::size_t i = 0; i < experts_.size(); ++i) {
    if (experts_[i].pinned >= 0) {
      COMOE_RETURN_IF_ERROR(file_->Read(index_.keys()[i], pinned_[experts_[i].pinned].data));
    }
  }
  return absl::OkStatus();
}

absl::Status TieredExpertCache::LoadMemory(const TieredSource& source) {
  const std::vector<base::ExpertKey>& keys = index_.keys();
  std::vector<std::int32_t> here;
  std::vector<std::int32_t> device_only;
  for (std::size_t begin = 0; begin < keys.size();) {
    here.clear();
    device_only.clear();
    std::size_t end = begin;
    for (; end < keys.size() && keys[end].layer == keys[begin].layer; ++end) {
      const Expert& x = experts_[end];
      (x.pinned < 0 && x.host < 0 ? device_only : here).push_back(static_cast<std::int32_t>(end));
    }
    COMOE_RETURN_IF_ERROR(PackLayer(source, here));
    COMOE_RETURN_IF_ERROR(PackThroughStaging(source, device_only));
    begin = end;
    source.progress(begin * index_.layout().bytes, keys.size() * index_.layout().bytes);
  }
  return absl::OkStatus();
}

absl::Status TieredExpertCache::PackLayer(const TieredSource& source, absl::Span<const std::int32_t> layer) {
  std::vector<absl::Status> results(layer.size());
  const std::size_t bytes = index_.layout().bytes;
  source.pool.ParallelFor(static_cast<std::int64_t>(layer.size()), [&](std::int64_t task, int /*worker*/) {
    const auto i = static_cast<std::size_t>(task);
    const Expert& x = expert(layer[i]);
    std::byte* target = x.pinned >= 0 ? pinned_[x.pinned].data : host_[x.host].data;
    results[i] =
        checkpoint::PackExpert(source.tensors, source.names, key(layer[i]), index_.layout(), {target, bytes});
    if (x.pinned >= 0 && x.host >= 0 && results[i].ok()) {
      std::copy_n(target, bytes, host_[x.host].data);
    }
  });
  for (std::size_t i = 0; i < layer.size(); ++i) {
    COMOE_RETURN_IF_ERROR(base::Annotate(
        results[i], absl::StrCat("layer ", key(layer[i]).layer, " expert ", key(layer[i]).expert)));
  }
  return absl::OkStatus();
}

// Experts that lie on the device only: as many at a time as there are staging places.
absl::Status TieredExpertCache::PackThroughStaging(const TieredSource& source,
                                                   absl::Span<const std::int32_t> experts) {
  const std::vector<std::int32_t>& spares = pinned_.spares();
  while (!experts.empty()) {
    const absl::Span<const std::int32_t> some = experts.subspan(0, spares.size());
    for (std::size_t i = 0; i < some.size(); ++i) {
      expert(some[i]).pinned = spares[i];
    }
    COMOE_RETURN_IF_ERROR(PackLayer(source, some));
    {
      // Until its copy has ended, it lies in the staging place, as if to stay.
      Scope scope(*transfers_);
      for (std::size_t i = 0; i < some.size(); ++i) {
        pinned_[spares[i]].expert = some[i];
        COMOE_RETURN_IF_ERROR(
            StartDeviceCopy(some[i], {Tier::kPinned, spares[i]},
                            {device_.slot(expert(some[i]).device_slot).place, expert(some[i]).device_slot},
                            base::CopyReason::kWarmup, Lane::kDemand, kNone));
      }
    }
    COMOE_RETURN_IF_ERROR(WarmDevice(some));
    experts.remove_prefix(some.size());
  }
  return absl::OkStatus();
}

// Copies those that are not there yet, and waits for them all, one after the other.
absl::Status TieredExpertCache::WarmDevice(absl::Span<const std::int32_t> experts) {
  for (const std::int32_t n : experts) {
    device::Event arrived;
    {
      Scope scope(*transfers_);
      if (expert(n).device < 0) {
        COMOE_ASSIGN_OR_RETURN(
            const std::int32_t place,
            ToDevice(n, expert(n).device_slot, base::CopyReason::kWarmup, Lane::kDemand, kNone));
        if (place < 0) {
          return absl::InternalError("no staging slot is free at start");
        }
      }
      arrived = device_[expert(n).device].arrived;
    }
    COMOE_RETURN_IF_ERROR(base::Annotate(
        arrived.Synchronize(options_.transfers.copy_limit),
        absl::StrCat("copying layer ", key(n).layer, " expert ", key(n).expert, " to the device")));
    // The place that it came from is needed now, and not when the notification comes.
    Scope scope(*transfers_);
    if (const std::int32_t copy = device_[expert(n).device].inbound; copy >= 0) {
      transfers_->Finish(copy);
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::experts
