// Strong ids. They cost nothing and cannot be mixed up: a SequenceId is never taken for a BlockId.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace comoe::base {

template <typename Tag, typename Rep>
struct StrongId {
  Rep value{};

  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;  // NOLINT: no null pointer
  template <typename H>
  friend H AbslHashValue(H state, const StrongId& id) {
    return H::combine(std::move(state), id.value);
  }
};

// A sequence of a request, for as long as it holds state in the engine. Never reused within a process.
using SequenceId = StrongId<struct SequenceIdTag, std::uint64_t>;
// A KV block of one cache group's pool. kNoBlock stands for positions whose state is no longer kept.
using BlockId = StrongId<struct BlockIdTag, std::int32_t>;
inline constexpr BlockId kNoBlock{-1};
// Counts Engine::Step calls; fences refer to it.
using StepId = StrongId<struct StepIdTag, std::uint64_t>;

using TokenId = std::int32_t;

// The FFN `expert` of decoder layer `layer` (layer counts all decoder layers, dense ones too).
struct ExpertKey {
  std::int32_t layer = 0;
  std::int32_t expert = 0;

  friend constexpr auto operator<=>(const ExpertKey&, const ExpertKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const ExpertKey& key) {
    return H::combine(std::move(state), key.layer, key.expert);
  }
};

}  // namespace comoe::base
