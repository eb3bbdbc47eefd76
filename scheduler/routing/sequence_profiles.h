// Which experts each running sequence has been using, fading with time: for choosing sequences that share.
// Bounded: so many sequences, and a sample of layers. Not thread-safe; nothing is allocated after
// construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/ids.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

class SequenceProfiles {
 public:
  static constexpr std::size_t kMostLayers = 6;

  // `window`: rows of its past that matter. `most_sequences`: the one that was longest not seen makes room.
  SequenceProfiles(const TierShape& shape, double window, std::size_t most_sequences);

  // One row of a sequence in one layer; layers outside of the sample cost nothing.
  void Observe(base::SequenceId sequence, std::int32_t layer, absl::Span<const std::int32_t> experts);
  bool samples(std::int32_t layer) const { return index_[static_cast<std::size_t>(layer)] >= 0; }

  // Experts, over all MoE layers, that the next row of `candidate` is expected to need and none of `chosen`'s
  // next rows. A sequence that nothing is known of needs k of each layer, all of them its own. Remembers
  // `chosen`, so that asking about many candidates, and then about one more chosen, is cheap.
  double AddedDemand(absl::Span<const base::SequenceId> chosen, base::SequenceId candidate);

 private:
  struct Profile {
    base::SequenceId sequence;
    bool used = false;
    std::uint64_t last_seen = 0;
    float unit = 1.0F;        // what a use in the latest row counts
    std::vector<float> rows;  // [sampled layers], of that
    std::vector<float> uses;  // [sampled layers, E], of that
  };

  std::size_t Find(base::SequenceId sequence) const;
  Profile& FindOrReplace(base::SequenceId sequence);
  void Choose(base::SequenceId sequence);
  void ForgetChosen();

  const std::size_t num_experts_;
  const double experts_per_token_;
  const std::size_t num_moe_layers_;
  const float growth_;
  std::vector<std::int32_t> index_;  // [num_layers]: in the sample; -1: not
  std::size_t num_sampled_ = 0;
  std::vector<Profile> profiles_;
  std::uint64_t clock_ = 0;
  mutable std::size_t found_ = 0;         // among profiles_, latest
  std::vector<base::SequenceId> chosen_;  // what left_ is about
  std::vector<float> left_;               // [sampled layers, E]: probability that none of chosen_ needs it
};

}  // namespace comoe::routing
