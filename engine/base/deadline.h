// How long one goes on waiting: by a clock that nobody sets.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace comoe::base {

// absl::Now() jumps when the machine's clock is put right, and a wait would end too early or much too late.
class Deadline {
 public:
  // Counts from now.
  explicit Deadline(absl::Duration limit) : limit_(limit), start_(std::chrono::steady_clock::now()) {}

  bool infinite() const { return limit_ == absl::InfiniteDuration(); }
  absl::Duration left() const {
    return infinite() ? limit_ : limit_ - absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }
  bool passed() const { return left() <= absl::ZeroDuration(); }

 private:
  absl::Duration limit_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace comoe::base
