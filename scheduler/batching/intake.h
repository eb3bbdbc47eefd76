// From what a client asks for to a sequence the scheduler can run. What is wrong with the request itself is
// refused here; what depends on the queue, in Mailbox::Post.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/ids.h"
#include "scheduler/batching/scheduler.h"
#include "scheduler/batching/sequence_table.h"

namespace comoe::batching {

// What a request must keep to.
struct IntakeLimits {
  std::int64_t max_positions = 0;  // of a sequence
  std::int32_t vocab_size = 0;
  std::vector<base::TokenId> eos_token_ids;
};

// INVALID_ARGUMENT says what of the request cannot be. Thread-safe.
absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(Submission submission, const IntakeLimits& limits,
                                                       absl::Time now);

}  // namespace comoe::batching
