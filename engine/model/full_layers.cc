#include "engine/model/full_layers.h"

#include <algorithm>
#include <optional>

#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"

namespace comoe::model {

absl::StatusOr<std::unique_ptr<FullLayers>> FullLayers::Create(const checkpoint::ModelConfig& config,
                                                               std::int64_t max_rows,
                                                               experts::ExpertCache& cache,
                                                               device::Device& device) {
  constexpr std::size_t kAddressesOf16Bytes = 2;
  std::unique_ptr<FullLayers> full(new FullLayers(cache));
  full->num_experts_ = static_cast<std::size_t>(config.num_experts);
  full->stride_ = base::AlignUp(full->num_experts_, kAddressesOf16Bytes);
  full->most_ = static_cast<std::size_t>(max_rows * config.experts_per_token);
  std::int32_t sparse = 0;
  for (const checkpoint::LayerConfig& layer : config.layers) {
    full->number_.push_back(layer.sparse ? sparse++ : -1);
  }
  const auto num_layers = static_cast<std::int32_t>(full->number_.size());
  full->next_.assign(full->number_.size() + 1, -1);
  std::int32_t next = -1;
  for (std::int32_t i = 2 * num_layers - 1; i >= 0; --i) {  // twice round: after the last comes the first
    const std::int32_t layer = i % num_layers;
    full->next_[static_cast<std::size_t>(layer) + 1] = next;
    next = full->number_[static_cast<std::size_t>(layer)] >= 0 ? layer : next;
  }
  full->next_[0] = next;
  full->version_.assign(static_cast<std::size_t>(sparse), 0);
  full->untold_.reserve(static_cast<std::size_t>(sparse));
  full->leased_.reserve(static_cast<std::size_t>(sparse));
  const auto layers = static_cast<std::size_t>(sparse);
  COMOE_ASSIGN_OR_RETURN(full->table_, device.Allocate(device::MemoryKind::kDevice,
                                                       layers * full->stride_ * sizeof(std::uint64_t),
                                                       tensor::kWeightAlignment));
  COMOE_ASSIGN_OR_RETURN(
      full->routing_, device.Allocate(device::MemoryKind::kPinned, layers * 2 * full->most_ * sizeof(float),
                                      tensor::kWeightAlignment));
  return full;
}

absl::StatusOr<bool> FullLayers::Begin(std::int32_t layer, device::Stream& stream) {
  const std::optional<experts::LayerPlaces> places = cache_.LeaseLayer(layer);
  if (!places.has_value()) {
    return false;
  }
  leased_.push_back(layer);
  std::uint64_t& version = version_[Number(layer)];
  if (version != places->version) {
    const std::size_t offset = Number(layer) * stride_ * sizeof(std::uint64_t);
    COMOE_RETURN_IF_ERROR(stream.Put(table_.data() + offset, places->addresses.data(),
                                     places->addresses.size() * sizeof(std::uint64_t)));
    version = places->version;
  }
  return true;
}

absl::Status FullLayers::Queued(device::Stream& stream) {
  if (leased_.empty()) {
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const device::Event done, stream.Record());
  for (const std::int32_t layer : leased_) {
    cache_.ReleaseLayer(layer, done);
    untold_.push_back({layer, done});
  }
  leased_.clear();
  return absl::OkStatus();
}

void FullLayers::Abandon() {
  for (const std::int32_t layer : leased_) {
    cache_.ReleaseLayer(layer, device::Event());
  }
  leased_.clear();
  untold_.clear();
  first_untold_ = 0;
}

bool FullLayers::NextIsFull(std::int32_t layer) const {
  return cache_.LayerIsThere(next_[static_cast<std::size_t>(layer + 1)]);
}

void FullLayers::Told() {
  if (++first_untold_ == untold_.size()) {
    untold_.clear();
    first_untold_ = 0;
  }
}

absl::Span<const std::uint64_t> FullLayers::blobs(std::int32_t layer) const {
  return {reinterpret_cast<const std::uint64_t*>(table_.data()) + Number(layer) * stride_, num_experts_};
}

absl::Span<std::int32_t> FullLayers::experts(std::int32_t layer, std::int64_t count) const {
  return {reinterpret_cast<std::int32_t*>(routing_.data()) + Number(layer) * 2 * most_,
          static_cast<std::size_t>(count)};
}

absl::Span<float> FullLayers::weights(std::int32_t layer, std::int64_t count) const {
  return {reinterpret_cast<float*>(routing_.data()) + (Number(layer) * 2 + 1) * most_,
          static_cast<std::size_t>(count)};
}

}  // namespace comoe::model
