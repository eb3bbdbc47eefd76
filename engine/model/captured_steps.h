// Stretches of a decode step between two decisions of the host, which are the same from step to step but for
// what lies in memory: captured once, then replayed. Tens of kernels cost the host one launch, and the device
// less between them.
//
// A stretch is captured when it comes for the third time: what the kernels need (memory, libraries) is there
// by then, and what comes once is not worth it. At most so many are kept; one that has not been used for long
// makes room.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"

namespace comoe::model {

// Owned by the engine thread. The streams' device outlives it.
class CapturedSteps {
 public:
  // Most rows of a step that is captured: with more, products dwarf launches, and come from a library.
  static constexpr std::int64_t kMostRows = 64;
  // Layers of a stretch at most: the host hears of a stretch's routing while the next one runs.
  static constexpr std::int32_t kMostLayers = 4;
  static constexpr std::size_t kMostKept = 1024;
  // Stretches that have run since: an old one may make room.
  static constexpr std::uint64_t kLongUnused = 16 * kMostKept;

  // All that decides what is queued, beside what never changes.
  struct Stretch {
    std::int32_t first_layer = 0;
    std::int32_t end_layer = 0;  // those before it run whole
    bool gate = false;           // and this one up to its router
    std::int32_t rows = 0;
    std::int64_t context_bound = 0;  // kernels::ContextBound of the longest
    friend bool operator==(const Stretch&, const Stretch&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Stretch& s) {
      return H::combine(std::move(h), s.first_layer, s.end_layer, s.gate, s.rows, s.context_bound);
    }
  };

  void BeginStep() { captured_in_step_ = 0; }
  // Has the stretch run on `stream`: by `queue`, which queues its kernels, or as it was captured.
  absl::Status Run(const Stretch& stretch, device::Stream& stream, absl::FunctionRef<absl::Status()> queue);

  std::size_t kept() const { return kept_; }
  std::uint64_t replays() const { return replays_; }

 private:
  static constexpr int kCapturesPerStep = 2;
  static constexpr std::int32_t kSeenBefore = 2;

  struct Entry {
    std::unique_ptr<device::Stream::Captured> work;  // nullptr: not yet
    std::int32_t seen = 0;
    bool refused = false;  // could not be captured
    std::uint64_t last_used = 0;
  };
  void Capture(Entry& entry, device::Stream& stream, absl::FunctionRef<absl::Status()> queue);
  // Whether there is room for another.
  absl::StatusOr<bool> MakeRoom(device::Stream& stream);

  absl::flat_hash_map<Stretch, Entry> entries_;
  std::size_t kept_ = 0;
  std::uint64_t version_ = 0;  // of the stream, to which all that is kept belongs
  std::uint64_t clock_ = 0;
  std::uint64_t replays_ = 0;
  int captured_in_step_ = 0;
  bool warned_ = false;  // that one could not be captured
};

}  // namespace comoe::model
