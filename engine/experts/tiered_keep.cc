// What goes from one cache to the next.
#include <algorithm>
#include <optional>
#include <utility>

#include "engine/experts/tiered_cache.h"

namespace comoe::experts {

bool TieredExpertCache::PinnedIsFixed(std::int32_t slots) const {
  return !disk_ && !options_.exclusive && slots >= static_cast<std::int32_t>(experts_.size());
}

// All but the slab.
PinnedKeep::Content TieredExpertCache::PinnedContent() const {
  PinnedKeep::Content content{&accelerator_, {}, pinned_.stride(), index_.layout(), {}};
  for (const Expert& x : experts_) {
    content.places.push_back(x.pinned);
  }
  return content;
}

// The slab with every expert in it that an earlier cache has left; whatever else it has left is freed.
std::optional<device::Buffer> TieredExpertCache::TakeKept(std::int32_t slots, device::MemoryKind kind,
                                                          std::size_t bytes, std::size_t stride) {
  if (options_.keep == nullptr) {
    return std::nullopt;
  }
  if (!PinnedIsFixed(slots)) {
    options_.keep->Clear();
    return std::nullopt;
  }
  PinnedKeep::Content wanted = PinnedContent();
  wanted.stride = stride;
  std::optional<PinnedKeep::Content> kept = options_.keep->Take(wanted, kind, bytes);
  if (!kept.has_value()) {
    return std::nullopt;
  }
  kept_ = std::move(kept->places);
  return std::move(kept->slab);
}

// At the end, when no copy is under way.
void TieredExpertCache::KeepPinned() {
  const auto fixed = [this](const Expert& x) {
    return x.pinned >= 0 && pinned_[x.pinned].there() && pinned_[x.pinned].usable;
  };
  if (loaded_ && lost_slots_ == 0 && accelerator_.health().ok() && PinnedIsFixed(pinned_.num_slots()) &&
      std::all_of(experts_.begin(), experts_.end(), fixed)) {
    PinnedKeep::Content content = PinnedContent();
    content.slab = pinned_.TakeSlab();
    options_.keep->Put(std::move(content));
  }
}

}  // namespace comoe::experts
