// The generations that are in flight, by id: for Abort, and so that no id is in flight twice. The scheduler
// knows ids, too, but of choices, which end one by one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/sync.h"

namespace comoe::server {

class Generation;

// Thread-safe.
class RequestRegistry {
 public:
  // False: the id is in flight.
  [[nodiscard]] bool Add(const std::string& id, const std::shared_ptr<Generation>& generation)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    return generations_.emplace(id, generation).second;
  }
  // Only for who has added it.
  void Remove(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    generations_.erase(id);
  }
  std::vector<std::shared_ptr<Generation>> All() const ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<Generation>> all;
    for (const auto& [id, generation] : generations_) {
      if (std::shared_ptr<Generation> alive = generation.lock(); alive != nullptr) {
        all.push_back(std::move(alive));
      }
    }
    return all;
  }
  // Null: no such request is in flight.
  std::shared_ptr<Generation> Find(const std::string& id) const ABSL_LOCKS_EXCLUDED(mutex_) {
    base::MutexLock lock(&mutex_);
    const auto found = generations_.find(id);
    return found == generations_.end() ? nullptr : found->second.lock();
  }

 private:
  mutable base::Mutex mutex_;
  std::map<std::string, std::weak_ptr<Generation>> generations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace comoe::server
