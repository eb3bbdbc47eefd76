// Which experts each token id needed: the strongest thing known about a row before its first layer has run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/ids.h"
#include "scheduler/routing/decayed_counts.h"
#include "scheduler/routing/row_predictor.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

// A table of bounded size: a token has one place (its id modulo the number of places), which holds for every
// layer the few experts that it needed most, with counts. A token that finds another in its place wears that
// down before it takes over, so frequent tokens stay. What is not in a place falls back to how often rows
// need the expert at all.
class TokenCounts final : public RowPredictor {
 public:
  // `table_bytes` bounds the table; at least one place is kept.
  TokenCounts(const TierShape& shape, std::uint64_t table_bytes);

  absl::string_view name() const override { return "token"; }
  void BeginStep(absl::Span<const base::TokenId> tokens) override;
  void Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) override;
  void Forecast(std::int32_t target, absl::Span<float> probabilities) override;
  void ForecastTokens(absl::Span<const base::TokenId> tokens, std::int32_t target,
                      absl::Span<float> probabilities) const override;

  std::uint64_t num_places() const { return owners_.size(); }
  void Append(std::vector<std::uint8_t>* bytes) const override;
  bool Restore(absl::Span<const std::uint8_t>* bytes) override;

 private:
  struct Count {
    std::uint16_t expert = 0;
    std::uint16_t uses = 0;
  };
  struct Owner {
    base::TokenId token = -1;
    std::uint32_t strength = 0;  // how often it was seen, less how often others wanted its place
  };

  std::size_t PlaceOf(base::TokenId token) const { return static_cast<std::size_t>(token) % owners_.size(); }
  void Claim(base::TokenId token);
  void Count1(Count* counts, std::uint16_t expert) const;
  void ForecastRow(base::TokenId token, std::size_t layer_index, absl::Span<const float> base,
                   absl::Span<float> row) const;

  const std::size_t num_experts_;
  const std::size_t experts_per_token_;
  const std::size_t num_moe_layers_;
  const std::size_t width_;                // experts kept for a token and layer
  std::vector<std::int32_t> layer_index_;  // [num_layers]: among the MoE layers
  std::vector<Owner> owners_;              // [places]
  std::vector<Count> counts_;              // [places, MoE layers, width]
  std::vector<std::uint16_t> seen_;        // [places, MoE layers]
  DecayedCounts frequency_;
  std::vector<base::TokenId> tokens_;  // of the step
  mutable std::vector<float> base_;    // scratch, [num_experts]
};

}  // namespace comoe::routing
