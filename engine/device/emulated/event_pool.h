// Event states that are used again and again.
#pragma once

#include <memory>
#include <vector>

#include "engine/base/sync.h"

namespace comoe::device {

// Thread-safe. Outlives the states that it handed out. Starts with as many as the slots of a few thousand
// experts remember their last use by; allocates only when more are out than ever before.
template <typename State>
class EventPool {
 public:
  EventPool() {
    base::MutexLock lock(&mutex_);
    all_.reserve(kInitialStates);
    free_.reserve(kInitialStates);
    for (int i = 0; i < kInitialStates; ++i) {
      all_.push_back(std::make_unique<State>());
      free_.push_back(all_.back().get());
    }
  }

  State* Take() {
    base::MutexLock lock(&mutex_);
    if (free_.empty()) {
      all_.push_back(std::make_unique<State>());
      free_.reserve(all_.capacity());
      return all_.back().get();
    }
    State* state = free_.back();
    free_.pop_back();
    return state;
  }
  void Put(State* state) {
    base::MutexLock lock(&mutex_);
    free_.push_back(state);
  }

 private:
  static constexpr int kInitialStates = 4096;

  base::Mutex mutex_;
  std::vector<std::unique_ptr<State>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<State*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::device
