// What rises from the host or disk into page-locked memory, and what makes room there: for policies that keep
// a pinned tier by worth. Not thread-safe; nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "engine/base/ids.h"
#include "scheduler/routing/needed_set.h"
#include "scheduler/routing/residency.h"
#include "scheduler/routing/victim_heap.h"

namespace comoe::routing {

// A pinned slot that a copy came to or left in the turn of a layer is left alone for the rest of that turn,
// since the copy may be under way still.
class PinnedPromoter {
 public:
  // The worth of having an expert in page-locked memory; at least 0.
  using ValueFn = absl::FunctionRef<double(base::ExpertKey)>;

  // `residency` outlives this. `margin`: by how much an expert must lead over what it displaces.
  PinnedPromoter(Residency* residency, double margin);

  // Another layer's turn.
  void Advance() { ++turn_; }
  // Brings up to date what the tier knows of all experts of a layer, of a slot's, of one expert that was
  // placed on the device.
  void RefreshLayer(std::int32_t layer, std::int32_t num_experts, ValueFn value);
  void RefreshAll(ValueFn value);
  void Placed(base::ExpertKey key, const Residency::Moved& moved, ValueFn value);
  void Vacated(base::Tier tier, std::int32_t slot, base::ExpertKey key, ValueFn value);
  // Orders for those of `keys` that are in neither tier, in their order, at most `most`.
  void Promote(absl::Span<const base::ExpertKey> keys, std::int32_t most, const NeededSet& needed,
               ValueFn value, std::vector<api::FetchOrder>* orders);

 private:
  void Refresh(std::int32_t slot, ValueFn value);

  Residency& residency_;
  const double margin_;
  VictimHeap victims_;
  std::vector<std::uint64_t> used_in_;  // [pinned_slots]: the turn of the latest copy from or to the slot
  std::uint64_t turn_ = 0;
};

}  // namespace comoe::routing
