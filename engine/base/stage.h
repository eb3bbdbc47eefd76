// The words in which a step's work is described: what a stretch of work is, why bytes are copied, what a lane
// waits for, and where an expert may lie. Shared by devices (which measure), the engine (which labels) and
// reports.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "engine/base/ids.h"

namespace comoe::base {

// Where a blob may lie.
enum class Tier : std::uint8_t { kDevice, kPinned, kHost, kDisk };
inline constexpr std::size_t kNumTiers = 4;
inline constexpr std::array<Tier, kNumTiers> kTiers = {Tier::kDevice, Tier::kPinned, Tier::kHost,
                                                       Tier::kDisk};
absl::string_view TierName(Tier tier);  // "device", "pinned", "host", "disk"

// Why bytes of experts are copied.
enum class CopyReason : std::uint8_t {
  kDemand,    // the layer at hand needs the expert
  kPrefetch,  // a forecast
  kWarmup,    // contents at start
  kEvict      // exclusive tiers: what makes room goes where the newcomer was
};
inline constexpr std::size_t kNumCopyReasons = 4;
absl::string_view CopyReasonName(CopyReason reason);  // "demand", "prefetch", "warmup", "evict"

enum class CopyDirection : std::uint8_t {
  kHostToDevice,
  kDeviceToHost,
  kHostToHost,  // into page-locked memory
  kDiskToHost
};
inline constexpr std::size_t kNumCopyDirections = 4;
absl::string_view CopyDirectionName(CopyDirection direction);  // "h2d", "d2h", "h2h", "disk_h"

// The stages of a step. `kOther` is what nobody labelled.
enum class StageKind : std::uint8_t {
  kOther,
  kEmbed,
  kAttention,
  kGate,
  kLookahead,  // routers of later layers, applied early
  kExpert,     // on the device
  kSharedExpert,
  kHostExpert,  // computed by the host lane
  kCombine,
  kHead,
  kCopy
};
inline constexpr std::size_t kNumStageKinds = 11;
absl::string_view StageKindName(StageKind kind);

struct Stage {
  StageKind kind = StageKind::kOther;
  std::int32_t layer = -1;                  // -1: none
  std::int32_t expert = -1;                 // -1: none, or several
  CopyReason reason = CopyReason::kDemand;  // of copies
};

// The edges of a step's graph along which one lane waits for another: the causes of a stall.
enum class WaitEdge : std::uint8_t {
  kDemandCopy,    // an expert that was missing is on its way
  kPrefetchCopy,  // a guess was right, but late; or a guess holds up who queues it
  kSlotFree,      // a copy's target is still read, or a copy finds no place before another ends
  kStaged,        // a copy's source is not in page-locked memory yet
  kHostLane,      // the host still computes an expert
  kRows           // the host lane waits for its inputs
};
inline constexpr std::size_t kNumWaitEdges = 6;
absl::string_view WaitEdgeName(WaitEdge edge);

// A sum for each member of one of the enumerations above.
template <typename T, std::size_t N>
struct PerKind {
  std::array<T, N> values{};
  template <typename Enum>
  T& operator[](Enum kind) {
    return values[static_cast<std::size_t>(kind)];
  }
  template <typename Enum>
  const T& operator[](Enum kind) const {
    return values[static_cast<std::size_t>(kind)];
  }
  T Sum() const {
    T sum{};
    for (const T& value : values) {
      sum += value;
    }
    return sum;
  }
};

}  // namespace comoe::base
