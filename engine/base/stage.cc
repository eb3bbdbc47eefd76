#include "engine/base/stage.h"

namespace comoe::base {
namespace {

template <typename Enum, std::size_t N>
absl::string_view NameOf(const std::array<absl::string_view, N>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "unknown";
}

constexpr std::array<absl::string_view, kNumTiers> kTierNames = {"device", "pinned", "host", "disk"};
constexpr std::array<absl::string_view, kNumCopyReasons> kReasonNames = {"demand", "prefetch", "warmup",
                                                                         "evict"};
constexpr std::array<absl::string_view, kNumCopyDirections> kDirectionNames = {"h2d", "d2h", "h2h", "disk_h"};
constexpr std::array<absl::string_view, kNumStageKinds> kStageNames = {
    "other",         "embed",       "attention", "gate", "look-ahead", "expert",
    "shared expert", "host expert", "combine",   "head", "copy"};
constexpr std::array<absl::string_view, kNumWaitEdges> kEdgeNames = {
    "demand_copy", "prefetch_copy", "slot_free", "staged", "host_lane", "rows"};

}  // namespace

absl::string_view TierName(Tier tier) { return NameOf(kTierNames, tier); }
absl::string_view CopyReasonName(CopyReason reason) { return NameOf(kReasonNames, reason); }
absl::string_view CopyDirectionName(CopyDirection direction) { return NameOf(kDirectionNames, direction); }
absl::string_view StageKindName(StageKind kind) { return NameOf(kStageNames, kind); }
absl::string_view WaitEdgeName(WaitEdge edge) { return NameOf(kEdgeNames, edge); }

}  // namespace comoe::base
