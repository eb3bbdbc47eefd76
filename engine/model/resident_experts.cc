#include "engine/model/resident_experts.h"

#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"

namespace comoe::model {

absl::StatusOr<std::unique_ptr<ResidentExperts>> ResidentExperts::Create(
    const checkpoint::ModelConfig& config, std::int64_t max_rows, experts::ExpertCache& cache,
    device::Device& device) {
  std::unique_ptr<ResidentExperts> resident(new ResidentExperts());
  resident->layout_ = cache.layout();
  resident->num_experts_ = static_cast<std::size_t>(config.num_experts);
  resident->most_ = static_cast<std::size_t>(max_rows * config.experts_per_token);
  std::vector<std::uint64_t> addresses;
  std::int64_t sparse = 0;
  for (std::size_t layer = 0; layer < config.layers.size(); ++layer) {
    resident->number_.push_back(config.layers[layer].sparse ? sparse++ : -1);
    for (std::int32_t e = 0; config.layers[layer].sparse && e < config.num_experts; ++e) {
      COMOE_ASSIGN_OR_RETURN(experts::Served served, cache.Acquire({static_cast<std::int32_t>(layer), e}));
      COMOE_RETURN_IF_ERROR(served.ready.Synchronize());
      addresses.push_back(reinterpret_cast<std::uint64_t>(served.lease.view().data));
      cache.Release(std::move(served.lease), device::Event());
    }
  }
  const std::size_t bytes = addresses.size() * sizeof(std::uint64_t);
  COMOE_ASSIGN_OR_RETURN(resident->table_,
                         device.Allocate(device::MemoryKind::kDevice, bytes, tensor::kWeightAlignment));
  COMOE_ASSIGN_OR_RETURN(resident->routing_, device.Allocate(device::MemoryKind::kPinned,
                                                             static_cast<std::size_t>(sparse) * 2 *
                                                                 resident->most_ * sizeof(float),
                                                             tensor::kWeightAlignment));
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream,
                         device.CreateStream("load", device::StreamKind::kCopy));
  COMOE_RETURN_IF_ERROR(stream->CopyAsync(resident->table_.data(),
                                          reinterpret_cast<const std::byte*>(addresses.data()), bytes));
  COMOE_RETURN_IF_ERROR(stream->Synchronize());
  return resident;
}

absl::Span<const std::uint64_t> ResidentExperts::blobs(std::int64_t layer) const {
  return {reinterpret_cast<const std::uint64_t*>(table_.data()) + Number(layer) * num_experts_, num_experts_};
}

absl::Span<std::int32_t> ResidentExperts::experts(std::int64_t layer, std::int64_t count) const {
  return {reinterpret_cast<std::int32_t*>(routing_.data()) + Number(layer) * 2 * most_,
          static_cast<std::size_t>(count)};
}

absl::Span<float> ResidentExperts::weights(std::int64_t layer, std::int64_t count) const {
  return {reinterpret_cast<float*>(routing_.data()) + (Number(layer) * 2 + 1) * most_,
          static_cast<std::size_t>(count)};
}

}  // namespace comoe::model
