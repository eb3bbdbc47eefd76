// Yardsticks that know the future: how often the best possible cache hits, and what perfect prediction is
// worth over the same link. For replay only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/api/expert_director.h"
#include "scheduler/routing/tier_shape.h"
#include "scheduler/routing/timed_replay.h"
#include "scheduler/routing/trace_file.h"

namespace comoe::routing {

// The distinct experts that each layer of each step needs, in order of time.
class AccessLog {
 public:
  AccessLog(const Trace& trace, const std::vector<std::vector<ReplayRow>>& steps);

  std::int32_t num_layers() const { return num_layers_; }  // MoE layers
  std::int32_t num_experts() const { return num_experts_; }
  std::int64_t num_turns() const { return static_cast<std::int64_t>(begin_.size()) - 1; }
  // Turn t is that of MoE layer number t % num_layers() of step t / num_layers(). Ascending ids.
  absl::Span<const std::uint16_t> Turn(std::int64_t turn) const {
    const std::size_t begin = begin_[static_cast<std::size_t>(turn)];
    return absl::MakeConstSpan(experts_).subspan(begin, begin_[static_cast<std::size_t>(turn) + 1] - begin);
  }
  std::int64_t num_accesses() const { return static_cast<std::int64_t>(experts_.size()); }
  // When each access's expert is needed next, in turns; num_turns() if never. In the order of the accesses.
  std::vector<std::int64_t> NextUses() const;
  std::size_t first_access(std::int64_t turn) const { return begin_[static_cast<std::size_t>(turn)]; }

 private:
  std::int32_t num_layers_;
  std::int32_t num_experts_;
  std::vector<std::uint16_t> experts_;
  std::vector<std::size_t> begin_;  // [turns + 1]
};

// Share of accesses that hit, from an empty cache on. An expert may be refused a slot.
struct OfflineRates {
  // Belady: what is needed again last gives way. With bypass no policy hits more often.
  double optimal_pooled = 0.0;
  double optimal_per_layer = 0.0;  // the slots shared out among the layers, the first layers get the rest
};
OfflineRates OptimalHitRates(const AccessLog& log, std::int32_t device_slots);

// The study's best online score: what has the least decayed count of past steps gives way, the step at hand
// counted; slots per layer, or one pool.
double DecayedHitRate(const AccessLog& log, std::int32_t device_slots, double decay, bool per_layer);

// Directors that know all steps to come, and copy ahead what is missing, in the order of need. Neither is
// best at any link, so that the yardstick is the faster of the two. Misses that are left go where `host_lane`
// lets the miss planner send them. The log's turns must be run in order.
enum class OracleKind : std::uint8_t {
  // As few copies as can be: what Belady would keep is kept, and only what it would not gives way. For a link
  // that is always busy.
  kFrugal,
  // As early as can be: whatever is needed later than the missing expert gives way to it.
  kEager
};
std::unique_ptr<api::ExpertDirector> MakeOracleDirector(const TierShape& shape,
                                                        std::shared_ptr<const AccessLog> log, OracleKind kind,
                                                        bool host_lane);

}  // namespace comoe::routing
