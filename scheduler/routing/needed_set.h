// Which experts the layer at hand needs, and whether a decode row is among those that need them. What is in
// it must not be displaced. Not thread-safe; nothing is allocated after construction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace comoe::routing {

class NeededSet {
 public:
  explicit NeededSet(std::int32_t num_experts) : kind_(static_cast<std::size_t>(num_experts), Kind::kNot) {}

  // From now on `layer` is at hand, and nothing is needed. -1: no layer.
  void Begin(std::int32_t layer) {
    layer_ = layer;
    std::fill(kind_.begin(), kind_.end(), Kind::kNot);
  }
  void Mark(std::int32_t expert, bool by_decode) {
    Kind& kind = kind_[static_cast<std::size_t>(expert)];
    kind = std::max(kind, by_decode ? Kind::kDecode : Kind::kPrefill);
  }
  // For when the routing of the layer is not known yet: any of it may be needed, by decode rows.
  void MarkAll() { std::fill(kind_.begin(), kind_.end(), Kind::kDecode); }

  std::int32_t layer() const { return layer_; }
  bool Contains(base::ExpertKey key) const { return KindOf(key) != Kind::kNot; }
  bool ByDecode(base::ExpertKey key) const { return KindOf(key) == Kind::kDecode; }

 private:
  enum class Kind : std::uint8_t { kNot, kPrefill, kDecode };

  Kind KindOf(base::ExpertKey key) const {
    return key.layer == layer_ ? kind_[static_cast<std::size_t>(key.expert)] : Kind::kNot;
  }

  std::int32_t layer_ = -1;
  std::vector<Kind> kind_;  // [num_experts]
};

}  // namespace comoe::routing
