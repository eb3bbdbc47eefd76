// Device slots that hold guesses: a bounded share of the pool, so that forecasts, however bad, cost no more
// than these slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"

namespace comoe::routing {

// A guess is pending from its order until its layer is at hand; it is not displaced until then. After that it
// stays as a guest, which the next guess displaces first, until a miss takes the slot or it has proved worth
// keeping. Not thread-safe; nothing is allocated after construction.
class GuestSlots {
 public:
  struct Guess {
    base::ExpertKey key;
    std::int32_t slot = 0;
    std::int32_t distance = 0;
    double saves = 0.0;  // seconds, if it is right
    double costs = 0.0;  // seconds, expected, by what it displaced
  };

  GuestSlots(std::int32_t num_slots, std::int32_t most_guests);

  bool pending(std::int32_t slot) const { return state_[static_cast<std::size_t>(slot)] == State::kPending; }
  bool guest(std::int32_t slot) const { return state_[static_cast<std::size_t>(slot)] != State::kNone; }
  bool full() const { return num_guests_ >= most_guests_; }
  std::size_t num_pending() const { return pending_.size(); }
  // Guests that are not pending; valid until the next call that is not const.
  const std::vector<std::int32_t>& idle() const { return idle_; }

  void Add(const Guess& guess);
  // The slot's content changed, or has proved worth keeping: no guest any more.
  void Forget(std::int32_t slot);
  // Appends the pending guesses of a layer to `guesses`; they are pending no more.
  void Settle(std::int32_t layer, std::vector<Guess>* guesses);

 private:
  enum class State : std::uint8_t { kNone, kIdle, kPending };
  void RemoveIdle(std::int32_t slot);

  const std::int32_t most_guests_;
  std::int32_t num_guests_ = 0;
  std::vector<State> state_;  // [num_slots]
  std::vector<Guess> pending_;
  std::vector<std::int32_t> idle_;  // slots
};

}  // namespace comoe::routing
