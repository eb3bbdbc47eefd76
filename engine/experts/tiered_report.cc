// What the tiers hold and what they have cost.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/bytes.h"
#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::CopyDirection;
using base::Tier;
using Scope = TransferEngine::Scope;

void TieredExpertCache::AddTotals(api::OffloadTotals& totals) const {
  Scope scope(*transfers_);
  const auto add = [&](Tier tier, const Places& its, std::uint64_t slots) {
    api::TierTotals& sum = totals.tiers[tier];
    sum.slots += slots;
    sum.slots_used += its.used();
    sum.used_bytes += its.used() * index_.layout().bytes;
    sum.capacity_bytes += its.bytes();
  };
  add(Tier::kDevice, device_, static_cast<std::uint64_t>(device_.num_slots()));
  totals.tiers[Tier::kDevice].staging_bytes += device_.spare_bytes();
  add(Tier::kPinned, pinned_, static_cast<std::uint64_t>(pinned_.num_slots()));
  totals.tiers[Tier::kPinned].staging_bytes += pinned_.spare_bytes();
  add(Tier::kHost, host_, host_.used());
  if (file_ != nullptr) {
    api::TierTotals& disk = totals.tiers[Tier::kDisk];
    disk.slots += experts_.size();
    disk.slots_used += experts_.size();
    disk.used_bytes += experts_.size() * index_.layout().bytes;
    disk.capacity_bytes += file_->size_bytes();
  }
  for (const Tier tier : base::kTiers) {
    totals.tiers[tier].hits += lookups_[tier].hits;
    totals.tiers[tier].misses += lookups_[tier].misses;
    totals.tiers[tier].evictions += lookups_[tier].evictions;
  }
  totals.prefetch_used_bytes += prefetch_used_bytes_;
  totals.prefetch_wasted_bytes += prefetch_wasted_bytes_;
  totals.prefetch_pending_bytes += prefetch_pending_bytes_;
  totals.lost_slots += lost_slots_;
  transfers_->AddTotals(totals);
}

absl::Span<const api::CopySample> TieredExpertCache::TakeCopySamples() {
  Scope scope(*transfers_);
  return transfers_->TakeSamples();
}

std::string TieredExpertCache::DescribeTiers() const {
  Scope scope(*transfers_);
  const auto rate = [&](CopyDirection direction) {
    const double seconds = transfers_->seconds_per_blob(direction);
    return seconds <= 0.0
               ? std::string("-")
               : absl::StrFormat("%.3g GB/s %s", static_cast<double>(index_.layout().bytes) / seconds / 1e9,
                                 transfers_->measured(direction) ? "measured" : "assumed");
  };
  std::string table = absl::StrFormat("%-8s %-24s %10s %10s %12s  %s\n", "tier", "place", "experts", "spares",
                                      "bytes", "a copy from there");
  std::uint64_t sum = 0;
  const auto line = [&](Tier tier, const std::string& place, std::uint64_t slots, std::uint64_t spares,
                        std::uint64_t bytes, const std::string& speed) {
    const absl::string_view name = base::TierName(tier);
    absl::StrAppendFormat(&table, "%-8s %-24s %10d %10d %12s  %s\n", name, place, slots, spares,
                          base::FormatBytes(bytes), speed);
    sum += tier == Tier::kDisk ? 0 : bytes;
  };
  line(Tier::kDevice, "device memory", static_cast<std::uint64_t>(device_.num_slots()),
       device_.spares().size(), device_.bytes(), rate(CopyDirection::kDeviceToHost));
  line(Tier::kPinned, pinned_.page_locked() ? "page-locked host memory" : "pageable host memory!",
       static_cast<std::uint64_t>(pinned_.num_slots()), pinned_.spares().size(), pinned_.bytes(),
       rate(CopyDirection::kHostToDevice));
  if (host_.size() > 0) {
    line(Tier::kHost, "host memory", host_.used(), static_cast<std::uint64_t>(host_.size()) - host_.used(),
         host_.bytes(), rate(CopyDirection::kHostToHost));
  }
  if (file_ != nullptr) {
    line(Tier::kDisk, file_->direct() ? "file, direct I/O" : "file, page cache!", experts_.size(), 0,
         file_->size_bytes(), rate(CopyDirection::kDiskToHost));
  }
  absl::StrAppendFormat(&table, "%-8s %-24s %10d %10s %12s  %s\n", "memory",
                        options_.exclusive ? "each expert once" : "upper tiers are copies", experts_.size(),
                        "", base::FormatBytes(sum), absl::StrCat(sum, " bytes reserved"));
  return table;
}

absl::Status TieredExpertCache::CheckPlaces() const {
  Scope scope(*transfers_);
  const auto wrong = [&](std::int32_t n, absl::string_view what) {
    return absl::InternalError(absl::StrCat("layer ", key(n).layer, " expert ", key(n).expert, " ", what));
  };
  const auto check = [&](const Places& its, std::int32_t Expert::*place_of) {
    for (std::int32_t i = 0; i < its.size(); ++i) {
      const Place& place = its[i];
      if (place.expert >= 0 && !place.transient && expert(place.expert).*place_of != i) {
        return wrong(place.expert, "lies where its books do not say");
      }
      if (place.slot >= 0 && its.slot(place.slot).place != i) {
        return absl::InternalError(absl::StrCat("slot ", place.slot, " and place ", i, " disagree"));
      }
    }
    for (std::int32_t n = 0; n < static_cast<std::int32_t>(experts_.size()); ++n) {
      const std::int32_t i = expert(n).*place_of;
      if (i >= 0 && its[i].expert != n) {
        return wrong(n, "is said to lie where another does");
      }
    }
    return absl::OkStatus();
  };
  absl::Status status = check(device_, &Expert::device);
  status.Update(check(pinned_, &Expert::pinned));
  status.Update(check(host_, &Expert::host));
  for (std::int32_t n = 0; status.ok() && n < static_cast<std::int32_t>(experts_.size()); ++n) {
    const Expert& x = expert(n);
    const bool moving = (x.device >= 0 && (device_[x.device].inbound >= 0 || device_[x.device].failed)) ||
                        (x.pinned >= 0 && (pinned_[x.pinned].inbound >= 0 || pinned_[x.pinned].failed)) ||
                        (x.host >= 0 && host_[x.host].inbound >= 0);
    const int there = (x.device >= 0 && device_[x.device].there() ? 1 : 0) +
                      (x.pinned >= 0 && pinned_[x.pinned].there() ? 1 : 0) +
                      (x.host >= 0 && host_[x.host].there() ? 1 : 0);
    if (there == 0 && !disk_) {
      status = wrong(n, "is nowhere");
    } else if (options_.exclusive && there > 1 && !moving) {
      status = wrong(n, "lies in two places");
    }
  }
  return status;
}

}  // namespace comoe::experts
