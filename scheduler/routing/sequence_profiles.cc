#include "scheduler/routing/sequence_profiles.h"

#include <algorithm>

namespace comoe::routing {
namespace {

constexpr float kLargestUnit = 1e20F;
constexpr std::size_t kMostChosen = 4096;

}  // namespace

SequenceProfiles::SequenceProfiles(const TierShape& shape, double window, std::size_t most_sequences)
    : num_experts_(static_cast<std::size_t>(shape.num_experts)),
      experts_per_token_(shape.experts_per_token),
      num_moe_layers_(shape.moe_layers.size()),
      growth_(static_cast<float>(1.0 + 1.0 / window)),
      index_(static_cast<std::size_t>(shape.num_layers), -1),
      num_sampled_(std::min(kMostLayers, num_moe_layers_)),
      profiles_(most_sequences),
      left_(num_sampled_ * num_experts_, 1.0F) {
  for (std::size_t i = 0; i < num_sampled_; ++i) {
    index_[static_cast<std::size_t>(shape.moe_layers[i * num_moe_layers_ / num_sampled_])] =
        static_cast<std::int32_t>(i);
  }
  for (Profile& profile : profiles_) {
    profile.rows.resize(num_sampled_);
    profile.uses.resize(num_sampled_ * num_experts_);
  }
  chosen_.reserve(kMostChosen);
}

// Whoever is asked for next mostly lies behind who was found last: the rows of a step keep their order.
std::size_t SequenceProfiles::Find(base::SequenceId sequence) const {
  std::size_t i = found_;
  for (std::size_t n = 0; n < profiles_.size(); ++n) {
    i = i + 1 < profiles_.size() ? i + 1 : 0;
    if (profiles_[i].used && profiles_[i].sequence == sequence) {
      found_ = i;
      return i;
    }
  }
  return profiles_.size();
}

SequenceProfiles::Profile& SequenceProfiles::FindOrReplace(base::SequenceId sequence) {
  const std::size_t found = Find(sequence);
  if (found < profiles_.size()) {
    return profiles_[found];
  }
  Profile& oldest =
      *std::min_element(profiles_.begin(), profiles_.end(), [](const Profile& a, const Profile& b) {
        return (a.used ? a.last_seen : 0) < (b.used ? b.last_seen : 0);
      });
  oldest.sequence = sequence;
  oldest.used = true;
  oldest.unit = 1.0F;
  std::fill(oldest.rows.begin(), oldest.rows.end(), 0.0F);
  std::fill(oldest.uses.begin(), oldest.uses.end(), 0.0F);
  return oldest;
}

void SequenceProfiles::Observe(base::SequenceId sequence, std::int32_t layer,
                               absl::Span<const std::int32_t> experts) {
  if (!samples(layer)) {
    return;
  }
  ForgetChosen();
  const auto i = static_cast<std::size_t>(index_[static_cast<std::size_t>(layer)]);
  Profile& profile = FindOrReplace(sequence);
  profile.last_seen = ++clock_;
  if (i == 0) {
    profile.unit *= growth_;
    if (profile.unit > kLargestUnit) {
      const auto shrink = [&profile](float value) { return value / profile.unit; };
      std::transform(profile.rows.begin(), profile.rows.end(), profile.rows.begin(), shrink);
      std::transform(profile.uses.begin(), profile.uses.end(), profile.uses.begin(), shrink);
      profile.unit = 1.0F;
    }
  }
  profile.rows[i] += profile.unit;
  for (const std::int32_t expert : experts) {
    profile.uses[i * num_experts_ + static_cast<std::size_t>(expert)] += profile.unit;
  }
}

void SequenceProfiles::ForgetChosen() {
  if (!chosen_.empty()) {
    chosen_.clear();
    std::fill(left_.begin(), left_.end(), 1.0F);
  }
}

void SequenceProfiles::Choose(base::SequenceId sequence) {
  chosen_.push_back(sequence);
  const std::size_t found = Find(sequence);
  if (found == profiles_.size()) {
    return;
  }
  const Profile& profile = profiles_[found];
  for (std::size_t i = 0; i < num_sampled_; ++i) {
    const float scale = profile.rows[i] > 0.0F ? 1.0F / profile.rows[i] : 0.0F;
    for (std::size_t e = i * num_experts_; e < (i + 1) * num_experts_; ++e) {
      left_[e] *= 1.0F - profile.uses[e] * scale;
    }
  }
}

double SequenceProfiles::AddedDemand(absl::Span<const base::SequenceId> chosen, base::SequenceId candidate) {
  const bool goes_on =
      chosen.size() >= chosen_.size() && std::equal(chosen_.begin(), chosen_.end(), chosen.begin());
  if (!goes_on) {
    ForgetChosen();
  }
  for (const base::SequenceId sequence : chosen.subspan(chosen_.size())) {
    Choose(sequence);
  }
  const std::size_t found = Find(candidate);
  const double per_layer = static_cast<double>(num_moe_layers_) / static_cast<double>(num_sampled_);
  double added = 0.0;
  for (std::size_t i = 0; i < num_sampled_; ++i) {
    if (found == profiles_.size() || !(profiles_[found].rows[i] > 0.0F)) {
      added += experts_per_token_;
      continue;
    }
    const Profile& profile = profiles_[found];
    float sum = 0.0F;
    for (std::size_t e = i * num_experts_; e < (i + 1) * num_experts_; ++e) {
      sum += profile.uses[e] * left_[e];
    }
    added += static_cast<double>(sum / profile.rows[i]);
  }
  return added * per_layer;
}

}  // namespace comoe::routing
