#include "scheduler/routing/victim_heap.h"

namespace comoe::routing {

VictimHeap::VictimHeap(std::int32_t num_slots)
    : position_(static_cast<std::size_t>(num_slots), kOut), worth_(static_cast<std::size_t>(num_slots)) {
  heap_.reserve(position_.size());
  refused_.reserve(position_.size());
}

void VictimHeap::Set(std::int32_t slot, const Worth& worth) {
  const auto i = static_cast<std::size_t>(slot);
  const Worth before = worth_[i];
  worth_[i] = worth;
  if (position_[i] == kOut) {
    heap_.push_back(slot);
    position_[i] = static_cast<std::int32_t>(heap_.size()) - 1;
    SiftUp(heap_.size() - 1);
  } else if (worth < before) {
    SiftUp(static_cast<std::size_t>(position_[i]));
  } else if (before < worth) {
    SiftDown(static_cast<std::size_t>(position_[i]));
  }
}

void VictimHeap::Remove(std::int32_t slot) {
  const std::int32_t at = position_[static_cast<std::size_t>(slot)];
  if (at == kOut) {
    return;
  }
  const std::int32_t last = heap_.back();
  heap_.pop_back();
  position_[static_cast<std::size_t>(slot)] = kOut;
  if (last != slot) {
    MoveTo(static_cast<std::size_t>(at), last);
    SiftUp(static_cast<std::size_t>(at));
    SiftDown(static_cast<std::size_t>(position_[static_cast<std::size_t>(last)]));
  }
}

std::int32_t VictimHeap::Lowest(absl::FunctionRef<bool(std::int32_t slot)> allowed) {
  refused_.clear();
  while (!heap_.empty() && !allowed(heap_.front())) {
    refused_.push_back(heap_.front());
    Remove(heap_.front());
  }
  const std::int32_t found = heap_.empty() ? kNoSlot : heap_.front();
  for (const std::int32_t slot : refused_) {
    Set(slot, worth_[static_cast<std::size_t>(slot)]);
  }
  return found;
}

// Ties are broken by slot, so that the answer does not depend on the order of calls.
bool VictimHeap::Less(std::int32_t a, std::int32_t b) const {
  const Worth& x = worth_[static_cast<std::size_t>(a)];
  const Worth& y = worth_[static_cast<std::size_t>(b)];
  return x < y || (!(y < x) && a < b);
}

void VictimHeap::MoveTo(std::size_t position, std::int32_t slot) {
  heap_[position] = slot;
  position_[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(position);
}

void VictimHeap::SiftUp(std::size_t position) {
  const std::int32_t slot = heap_[position];
  while (position > 0) {
    const std::size_t parent = (position - 1) / 2;
    if (!Less(slot, heap_[parent])) {
      break;
    }
    MoveTo(position, heap_[parent]);
    position = parent;
  }
  MoveTo(position, slot);
}

void VictimHeap::SiftDown(std::size_t position) {
  const std::int32_t slot = heap_[position];
  for (std::size_t child = 2 * position + 1; child < heap_.size(); child = 2 * position + 1) {
    if (child + 1 < heap_.size() && Less(heap_[child + 1], heap_[child])) {
      ++child;
    }
    if (!Less(heap_[child], slot)) {
      break;
    }
    MoveTo(position, heap_[child]);
    position = child;
  }
  MoveTo(position, slot);
}

}  // namespace comoe::routing
