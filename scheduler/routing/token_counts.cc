#include "scheduler/routing/token_counts.h"

#include <algorithm>
#include <cstring>

namespace comoe::routing {
namespace {

constexpr std::uint16_t kMostUses = 60000;
constexpr std::uint32_t kMostStrength = 1U << 20;
// Weight of what all rows need, in rows: best on the first half of the study's sequences.
constexpr float kSmoothing = 2.0F;
constexpr double kFrequencyDecay = 0.995;

// An expert that any of the kept ones was is likely to come again; a few more than a row needs catch them.
std::size_t WidthOf(const TierShape& shape) {
  return static_cast<std::size_t>(
      std::min({shape.num_experts, std::max(8, 3 * shape.experts_per_token), 64}));
}

template <typename T>
void AppendRaw(const std::vector<T>& values, std::vector<std::uint8_t>* bytes) {
  const std::size_t at = bytes->size();
  bytes->resize(at + values.size() * sizeof(T));
  std::memcpy(bytes->data() + at, values.data(), values.size() * sizeof(T));
}

template <typename T>
void TakeRaw(absl::Span<const std::uint8_t>* bytes, std::vector<T>* values) {
  std::memcpy(values->data(), bytes->data(), values->size() * sizeof(T));
  bytes->remove_prefix(values->size() * sizeof(T));
}

}  // namespace

TokenCounts::TokenCounts(const TierShape& shape, std::uint64_t table_bytes)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(static_cast<std::size_t>(shape.experts_per_token)),
      num_moe_layers_(shape.moe_layers.size()),
      width_(WidthOf(shape)),
      layer_index_(static_cast<std::size_t>(shape.num_layers), -1),
      frequency_(shape, kFrequencyDecay),
      base_(num_experts_) {
  for (std::size_t i = 0; i < num_moe_layers_; ++i) {
    layer_index_[static_cast<std::size_t>(shape.moe_layers[i])] = static_cast<std::int32_t>(i);
  }
  const std::uint64_t place_bytes =
      sizeof(Owner) + num_moe_layers_ * (width_ * sizeof(Count) + sizeof(std::uint16_t));
  // No vocabulary has more than 2^20 ids.
  const auto places = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(table_bytes / place_bytes, 1, std::uint64_t{1} << 20));
  owners_.resize(places);
  counts_.resize(places * num_moe_layers_ * width_);
  seen_.resize(places * num_moe_layers_);
  tokens_.reserve(kMaxForecastRows);
}

void TokenCounts::BeginStep(absl::Span<const base::TokenId> tokens) {
  tokens_.assign(tokens.begin(), tokens.end());
  for (const base::TokenId token : tokens_) {
    if (token >= 0) {
      Claim(token);
    }
  }
}

void TokenCounts::Claim(base::TokenId token) {
  const std::size_t place = PlaceOf(token);
  Owner& owner = owners_[place];
  if (owner.token == token) {
    owner.strength = std::min(owner.strength + 1, kMostStrength);
  } else if (owner.token >= 0 && owner.strength > 1) {
    --owner.strength;
  } else {
    owner = {token, 1};
    const std::size_t first = place * num_moe_layers_;
    std::fill_n(seen_.begin() + static_cast<std::ptrdiff_t>(first), num_moe_layers_, std::uint16_t{0});
    std::fill_n(counts_.begin() + static_cast<std::ptrdiff_t>(first * width_), num_moe_layers_ * width_,
                Count{});
  }
}

void TokenCounts::Observe(std::int32_t layer, absl::Span<const std::int32_t> experts) {
  frequency_.Observe(layer, experts);
  const auto layer_index = static_cast<std::size_t>(layer_index_[static_cast<std::size_t>(layer)]);
  for (std::size_t t = 0; t < tokens_.size(); ++t) {
    if (tokens_[t] < 0 || owners_[PlaceOf(tokens_[t])].token != tokens_[t]) {
      continue;
    }
    const std::size_t at = PlaceOf(tokens_[t]) * num_moe_layers_ + layer_index;
    Count* counts = &counts_[at * width_];
    if (seen_[at] == kMostUses) {
      seen_[at] = kMostUses / 2;
      for (std::size_t i = 0; i < width_; ++i) {
        counts[i].uses = static_cast<std::uint16_t>(counts[i].uses / 2);
      }
    }
    ++seen_[at];
    for (std::size_t i = 0; i < experts_per_token_; ++i) {
      Count1(counts, static_cast<std::uint16_t>(experts[t * experts_per_token_ + i]));
    }
  }
}

// A stranger takes the place of the least used once that has been worn down.
void TokenCounts::Count1(Count* counts, std::uint16_t expert) const {
  std::size_t least = 0;
  for (std::size_t i = 0; i < width_; ++i) {
    if (counts[i].uses > 0 && counts[i].expert == expert) {
      ++counts[i].uses;
      return;
    }
    if (counts[i].uses < counts[least].uses) {
      least = i;
    }
  }
  if (counts[least].uses <= 1) {
    counts[least] = {expert, 1};
  } else {
    --counts[least].uses;
  }
}

void TokenCounts::ForecastRow(base::TokenId token, std::size_t layer_index, absl::Span<const float> base,
                              absl::Span<float> row) const {
  const bool known = token >= 0 && owners_[PlaceOf(token)].token == token;
  const std::size_t at = known ? PlaceOf(token) * num_moe_layers_ + layer_index : 0;
  if (!known || seen_[at] == 0) {
    std::copy(base.begin(), base.end(), row.begin());
    return;
  }
  const float scale = 1.0F / (static_cast<float>(seen_[at]) + kSmoothing);
  const float rest = kSmoothing * scale;
  for (std::size_t e = 0; e < num_experts_; ++e) {
    row[e] = base[e] * rest;
  }
  for (std::size_t i = 0; i < width_; ++i) {
    const Count& count = counts_[at * width_ + i];
    row[count.expert] += static_cast<float>(count.uses) * scale;
  }
}

void TokenCounts::ForecastTokens(absl::Span<const base::TokenId> tokens, std::int32_t target,
                                 absl::Span<float> probabilities) const {
  frequency_.Forecast(target, absl::MakeSpan(base_));
  const auto layer_index = static_cast<std::size_t>(layer_index_[static_cast<std::size_t>(target)]);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    ForecastRow(tokens[t], layer_index, base_, probabilities.subspan(t * num_experts_, num_experts_));
  }
}

void TokenCounts::Forecast(std::int32_t target, absl::Span<float> probabilities) {
  ForecastTokens(tokens_, target, probabilities);
}

void TokenCounts::Append(std::vector<std::uint8_t>* bytes) const {
  AppendRaw(owners_, bytes);
  AppendRaw(counts_, bytes);
  AppendRaw(seen_, bytes);
}

bool TokenCounts::Restore(absl::Span<const std::uint8_t>* bytes) {
  if (bytes->size() < owners_.size() * sizeof(Owner) + counts_.size() * sizeof(Count) +
                          seen_.size() * sizeof(std::uint16_t)) {
    return false;
  }
  absl::Span<const std::uint8_t> rest = *bytes;
  std::vector<Owner> owners(owners_.size());
  std::vector<Count> counts(counts_.size());
  std::vector<std::uint16_t> seen(seen_.size());
  TakeRaw(&rest, &owners);
  TakeRaw(&rest, &counts);
  TakeRaw(&rest, &seen);
  const bool fits = std::all_of(counts.begin(), counts.end(),
                                [this](const Count& count) { return count.expert < num_experts_; });
  if (!fits) {
    return false;
  }
  owners_ = std::move(owners);
  counts_ = std::move(counts);
  seen_ = std::move(seen);
  *bytes = rest;
  return true;
}

}  // namespace comoe::routing
