#include "scheduler/routing/guest_slots.h"

#include <algorithm>

namespace comoe::routing {

GuestSlots::GuestSlots(std::int32_t num_slots, std::int32_t most_guests)
    : most_guests_(std::min(num_slots, most_guests)),
      state_(static_cast<std::size_t>(num_slots), State::kNone) {
  pending_.reserve(state_.size());
  idle_.reserve(state_.size());
}

void GuestSlots::Add(const Guess& guess) {
  Forget(guess.slot);
  state_[static_cast<std::size_t>(guess.slot)] = State::kPending;
  pending_.push_back(guess);
  ++num_guests_;
}

void GuestSlots::RemoveIdle(std::int32_t slot) {
  idle_.erase(std::remove(idle_.begin(), idle_.end(), slot), idle_.end());
}

void GuestSlots::Forget(std::int32_t slot) {
  State& state = state_[static_cast<std::size_t>(slot)];
  if (state == State::kNone) {
    return;
  }
  if (state == State::kIdle) {
    RemoveIdle(slot);
  } else {
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(),
                                  [slot](const Guess& guess) { return guess.slot == slot; }),
                   pending_.end());
  }
  state = State::kNone;
  --num_guests_;
}

void GuestSlots::Settle(std::int32_t layer, std::vector<Guess>* guesses) {
  std::size_t kept = 0;
  for (const Guess& guess : pending_) {
    if (guess.key.layer != layer) {
      pending_[kept++] = guess;
      continue;
    }
    guesses->push_back(guess);
    state_[static_cast<std::size_t>(guess.slot)] = State::kIdle;
    idle_.push_back(guess.slot);
  }
  pending_.resize(kept);
}

}  // namespace comoe::routing
