#include "engine/experts/resident_cache.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"

namespace comoe::experts {

absl::StatusOr<std::unique_ptr<ResidentExpertCache>> ResidentExpertCache::Load(
    const checkpoint::TensorSource& source, const checkpoint::ModelConfig& config,
    const checkpoint::WeightNames& names, tensor::DType dtype, device::Device& device, base::ThreadPool& pool,
    LoadProgress progress) {
  checkpoint::ExpertIndex index = checkpoint::ExpertIndex::Make(config, dtype);
  COMOE_ASSIGN_OR_RETURN(device::Buffer slab, device.Allocate(device::MemoryKind::kDevice,
                                                              index.total_bytes(), tensor::kWeightAlignment));
  const std::vector<base::ExpertKey> keys = index.keys();
  const absl::Span<std::byte> bytes(slab.data(), slab.size());
  std::uint64_t done = 0;
  for (std::size_t begin = 0; begin < keys.size();) {
    std::size_t end = begin;
    while (end < keys.size() && keys[end].layer == keys[begin].layer) {
      ++end;
    }
    std::vector<absl::Status> results(end - begin);
    pool.ParallelFor(static_cast<std::int64_t>(end - begin), [&](std::int64_t task, int /*worker*/) {
      const auto i = static_cast<std::size_t>(task);
      results[i] = checkpoint::PackExpertInto(source, names, keys[begin + i], &index, bytes);
    });
    for (std::size_t i = 0; i < results.size(); ++i) {
      COMOE_RETURN_IF_ERROR(base::Annotate(
          results[i], absl::StrCat("layer ", keys[begin + i].layer, " expert ", keys[begin + i].expert)));
    }
    done += (end - begin) * index.layout().bytes;
    progress(done, index.total_bytes());
    begin = end;
  }
  return std::unique_ptr<ResidentExpertCache>(new ResidentExpertCache(std::move(index), std::move(slab)));
}

absl::StatusOr<Served> ResidentExpertCache::Acquire(base::ExpertKey key) {
  const checkpoint::ExpertEntry* entry = std::as_const(index_).Find(key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat("the model has no expert ", key.expert, " in layer ", key.layer));
  }
  ++hits_;
  return Served{Lease(key, {slab_.data() + entry->offset, &index_.layout()}, &pins_), device::Event()};
}

absl::StatusOr<std::optional<Served>> ResidentExpertCache::Fetch(base::ExpertKey key, std::int32_t /*slot*/) {
  return absl::FailedPreconditionError(absl::StrCat("expert ", key.expert, " of layer ", key.layer,
                                                    " was fetched, but all experts are resident"));
}

void ResidentExpertCache::AddTotals(api::OffloadTotals& totals) const {
  api::TierTotals& tier = totals.tiers[base::Tier::kDevice];
  tier.slots = tier.slots_used = index_.keys().size();
  tier.used_bytes = tier.capacity_bytes = slab_.size();
  tier.hits = hits_;
}

absl::Status ResidentExpertCache::VerifyChecksums() const {
  for (const base::ExpertKey key : index_.keys()) {
    COMOE_RETURN_IF_ERROR(index_.Verify(key, slab_.data()));
  }
  return absl::OkStatus();
}

}  // namespace comoe::experts
