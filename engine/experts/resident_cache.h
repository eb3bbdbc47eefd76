// Every expert in one slab, for as long as the process lives: what the CPU device uses, where "on the device"
// is host memory. On other devices policy `resident` is a TieredExpertCache with a slot for each expert.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/base/thread_pool.h"
#include "engine/checkpoint/expert_packer.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/tensor_source.h"
#include "engine/checkpoint/weight_names.h"
#include "engine/device/device.h"
#include "engine/experts/expert_cache.h"

namespace comoe::experts {

// Bytes packed so far and in all. Called on the loading thread, between layers.
using LoadProgress = absl::FunctionRef<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

class ResidentExpertCache final : public ExpertCache {
 public:
  // Packs every routed expert of `source`, a layer at a time on all threads of `pool`; pages of the files are
  // dropped as it goes, so peak memory is the slab plus one layer. The device's memory must be reachable by
  // the host.
  static absl::StatusOr<std::unique_ptr<ResidentExpertCache>> Load(
      const checkpoint::TensorSource& source, const checkpoint::ModelConfig& config,
      const checkpoint::WeightNames& names, tensor::DType dtype, device::Device& device,
      base::ThreadPool& pool, LoadProgress progress);

  absl::StatusOr<Served> Acquire(base::ExpertKey key) override;
  // Nothing is ever missing: FAILED_PRECONDITION.
  absl::StatusOr<std::optional<Served>> Fetch(base::ExpertKey key, std::int32_t slot) override;
  absl::StatusOr<Served> AcquireHost(base::ExpertKey key) override { return Acquire(key); }
  // Bytes never move, so that there is nothing to fence.
  void Release(Lease /*lease*/, const device::Event& /*last_use*/) override {}
  void Prefetch(absl::Span<const api::FetchOrder> /*orders*/) override {}
  void LayerPassed(std::int32_t /*layer*/) override {}
  void Failed(Lease /*lease*/, const absl::Status& /*status*/) override {}
  absl::Span<const Vacated> TakeVacated() override { return {}; }
  void Describe(api::LaneState& /*lanes*/) const override {}
  void AddTotals(api::OffloadTotals& totals) const override;
  const tensor::BlobLayout& layout() const override { return index_.layout(); }
  std::int64_t leased() const override { return pins_.load(std::memory_order_acquire); }

  const checkpoint::ExpertIndex& index() const { return index_; }
  // DATA_LOSS names the first expert whose bytes no longer have their checksum.
  absl::Status VerifyChecksums() const;

 private:
  ResidentExpertCache(checkpoint::ExpertIndex index, device::Buffer slab)
      : index_(std::move(index)), slab_(std::move(slab)) {}

  checkpoint::ExpertIndex index_;
  device::Buffer slab_;
  // Nothing is ever evicted here, so one count for all slots is enough to see a lease that leaks.
  std::atomic<std::int32_t> pins_{0};
  std::uint64_t hits_ = 0;
};

}  // namespace comoe::experts
