// Whole layers whose experts are all on the device: found, leased and released as one.
//
// A layer with a hundred experts has its lease on a counter of its own and one event, not on a hundred
// places: what moves experts asks for both. Whether all are there is found anew only after something has
// changed for one of them.
#include <utility>

#include "engine/base/check.h"
#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

using base::Tier;
using Scope = TransferEngine::Scope;

void TieredExpertCache::FindLayers() {
  layers_.resize(config_.layers.size());
  for (std::size_t n = 0; n < experts_.size(); ++n) {
    const base::ExpertKey who = key(static_cast<std::int32_t>(n));
    Layer& layer = layers_[static_cast<std::size_t>(who.layer)];
    if (layer.first < 0) {
      layer.first = static_cast<std::int32_t>(n);
    }
    COMOE_CHECK(layer.first + who.expert == static_cast<std::int32_t>(n),
                "a layer's experts have adjacent numbers");
    layer.addresses.push_back(0);
  }
}

bool TieredExpertCache::CheckLayer(std::int32_t number) {
  if (number < 0 || static_cast<std::size_t>(number) >= layers_.size()) {
    return false;
  }
  Layer& layer = layers_[static_cast<std::size_t>(number)];
  if (layer.checked == layer.changes) {
    return layer.there;
  }
  layer.checked = layer.changes;
  layer.there = layer.first >= 0;
  for (std::size_t e = 0; layer.there && e < layer.addresses.size(); ++e) {
    const Expert& x = expert(layer.first + static_cast<std::int32_t>(e));
    layer.there = x.device >= 0 && x.device_slot >= 0 && device_[x.device].slot == x.device_slot &&
                  device_[x.device].there();
    if (layer.there) {
      layer.addresses[e] = reinterpret_cast<std::uint64_t>(device_[x.device].data);
    }
  }
  return layer.there;
}

bool TieredExpertCache::LayerIsThere(std::int32_t layer) {
  Scope scope(*transfers_);
  return CheckLayer(layer);
}

std::optional<LayerPlaces> TieredExpertCache::LeaseLayer(std::int32_t layer) {
  Scope scope(*transfers_);
  if (!CheckLayer(layer)) {
    return std::nullopt;
  }
  Touch(layer);
  Layer& leased = layers_[static_cast<std::size_t>(layer)];
  ++leased.leases;
  ++leased_layers_;
  return LayerPlaces{leased.addresses, leased.checked};
}

void TieredExpertCache::ReleaseLayer(std::int32_t layer, const device::Event& last_use) {
  Scope scope(*transfers_);
  Layer& leased = layers_[static_cast<std::size_t>(layer)];
  COMOE_CHECK(leased.leases > 0, "only a layer that is leased is released");
  --leased.leases;
  --leased_layers_;
  leased.last_use = last_use;
  if (layer >= position_) {  // else one that was leased after it passes for both: walks only go on
    Passed(layer);
  }
}

void TieredExpertCache::KeepLastUse(Place& place) {
  if (place.expert >= 0 && !place.transient) {
    place.readers.AddUse(LayerOf(place.expert).last_use);
  }
}

void TieredExpertCache::CountHits(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  Scope scope(*transfers_);
  lookups_[Tier::kDevice].hits += experts.size();
  if (prefetch_pending_bytes_ == 0) {
    return;
  }
  for (const std::int32_t e : experts) {
    const std::int32_t i = expert(layers_[static_cast<std::size_t>(layer)].first + e).device;
    if (i >= 0 && std::exchange(device_[i].undecided, false)) {
      prefetch_pending_bytes_ -= index_.layout().bytes;
      prefetch_used_bytes_ += index_.layout().bytes;
    }
  }
}

}  // namespace comoe::experts
