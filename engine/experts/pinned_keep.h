// The memory of the tier `pinned` with all experts packed into it, kept from one cache to the next of a
// process: packing and page-locking many gigabytes takes longer than most measurements.
//
// Only memory that holds every expert is kept, since nothing is written there once it is loaded: where it is
// the lowest of inclusive tiers. What another cache cannot use is freed before that one asks for memory, so
// that there is never more than one such slab.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "engine/tensor/packed_matrix.h"

namespace comoe::experts {

// Not thread-safe. Belongs to who makes caches one after the other, and who answers for it that they have the
// same model with the same weights: only its shape is compared. The device outlives it.
class PinnedKeep {
 public:
  struct Content {
    const device::Device* device = nullptr;  // whose memory it is
    device::Buffer slab;                     // page-locked, or not (TieredOptions::page_lock)
    std::size_t stride = 0;
    tensor::BlobLayout layout;
    std::vector<std::int32_t> places;  // [experts] where in the slab each lies, in strides
  };

  bool empty() const { return !content_.has_value(); }
  std::uint64_t bytes() const { return empty() ? 0 : content_->slab.size(); }
  void Clear() { content_.reset(); }

  void Put(Content content) {
    Clear();
    content_ = std::move(content);
  }
  // What is kept, if it is `wanted`'s device's, and of as many experts alike, in such a slab; otherwise it is
  // freed. `wanted` has no slab itself, and its places do not matter. Empty afterwards.
  std::optional<Content> Take(const Content& wanted, device::MemoryKind kind, std::size_t slab_bytes) {
    const bool fits = !empty() && content_->device == wanted.device && bytes() == slab_bytes &&
                      content_->slab.kind() == kind && content_->stride == wanted.stride &&
                      content_->layout == wanted.layout && content_->places.size() == wanted.places.size();
    std::optional<Content> taken = std::move(content_);
    Clear();
    return fits ? std::move(taken) : std::nullopt;
  }

 private:
  std::optional<Content> content_;
};

}  // namespace comoe::experts
