// The used slots of a tier, the one least worth keeping first: a binary heap that knows where each slot is.
// Nothing is allocated after construction. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "scheduler/routing/slot_table.h"

namespace comoe::routing {

// What keeping an expert is worth: the value decides, the later use among equals.
struct Worth {
  double value = 0.0;  // not NaN
  std::uint64_t last_use = 0;

  friend bool operator<(const Worth& a, const Worth& b) {
    return a.value < b.value || (a.value == b.value && a.last_use < b.last_use);
  }
};

class VictimHeap {
 public:
  explicit VictimHeap(std::int32_t num_slots);

  // Adds the slot, or changes its worth. O(log slots); O(1) if nothing changes.
  void Set(std::int32_t slot, const Worth& worth);
  // Takes the slot out; nothing if it is not in.
  void Remove(std::int32_t slot);
  // The slot of least worth for which `allowed` says so; kNoSlot: none. O(log slots) for each it refuses.
  std::int32_t Lowest(absl::FunctionRef<bool(std::int32_t slot)> allowed);
  // Of a slot that is in.
  const Worth& worth(std::int32_t slot) const { return worth_[static_cast<std::size_t>(slot)]; }

 private:
  static constexpr std::int32_t kOut = -1;

  bool Less(std::int32_t a, std::int32_t b) const;
  void MoveTo(std::size_t position, std::int32_t slot);
  void SiftUp(std::size_t position);
  void SiftDown(std::size_t position);

  std::vector<std::int32_t> heap_;      // slots
  std::vector<std::int32_t> position_;  // [num_slots]: in heap_, or kOut
  std::vector<Worth> worth_;            // [num_slots]
  std::vector<std::int32_t> refused_;   // scratch of Lowest
};

}  // namespace comoe::routing
