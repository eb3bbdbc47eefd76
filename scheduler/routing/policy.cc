#include "scheduler/routing/policy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "scheduler/routing/lru_director.h"
#include "scheduler/routing/naive_director.h"
#include "scheduler/routing/resident_director.h"
#include "scheduler/routing/simple_director.h"
#include "scheduler/routing/static_director.h"

namespace comoe::routing {
namespace {

constexpr std::int32_t kMaxWindow = 1'000'000;

absl::Status CheckShape(const TierShape& shape) {
  if (shape.num_layers < 1 || shape.num_experts < 1 ||
      std::int64_t{shape.num_layers} * shape.num_experts > std::numeric_limits<std::int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tier shape: ", shape.num_layers, " layers of ", shape.num_experts, " experts"));
  }
  if (shape.experts_per_token < 1 || shape.experts_per_token > shape.num_experts) {
    return absl::InvalidArgumentError(
        absl::StrCat("tier shape: ", shape.experts_per_token, " experts per token of ", shape.num_experts));
  }
  std::int32_t before = -1;
  for (const std::int32_t layer : shape.moe_layers) {
    if (layer <= before || layer >= shape.num_layers) {
      return absl::InvalidArgumentError("tier shape: MoE layers are not ascending layer numbers");
    }
    before = layer;
  }
  if (shape.moe_layers.empty()) {
    return absl::InvalidArgumentError("tier shape: no MoE layer");
  }
  if (shape.device_slots < 0 || shape.pinned_slots < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tier shape: ", shape.device_slots, " device slots, ",
                                                   shape.pinned_slots, " pinned slots"));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const TierShape& shape, const PolicyOptions& options) {
  if (!options.hot_counts.empty() && (options.hot_counts.size() != shape.num_keys() ||
                                      !std::all_of(options.hot_counts.begin(), options.hot_counts.end(),
                                                   [](double count) { return std::isfinite(count); }))) {
    return absl::InvalidArgumentError(absl::StrCat("hot counts: need a finite number for each of ",
                                                   shape.num_layers, " x ", shape.num_experts, " experts"));
  }
  if (options.window < 1 || options.window > kMaxWindow) {
    return absl::InvalidArgumentError(absl::StrCat("window: ", options.window, " is not in [1, 1000000]"));
  }
  if (options.prefetch_per_layer < -1 || options.promotions_per_layer < 0) {
    return absl::InvalidArgumentError("prefetches and promotions per layer cannot be negative");
  }
  // A margin of 0 would let equals displace each other for ever.
  if (!(options.prefetch_margin > 0.0) || !(options.promotion_margin > 0.0)) {
    return absl::InvalidArgumentError("margins of prefetch and promotion must be above 0");
  }
  return CheckHubParameters(options.hub);
}

}  // namespace

absl::StatusOr<Policy> MakePolicy(absl::string_view name, const TierShape& shape,
                                  const PolicyOptions& options) {
  COMOE_RETURN_IF_ERROR(CheckShape(shape));
  COMOE_RETURN_IF_ERROR(CheckOptions(shape, options));
  Policy policy;
  if (name == "naive") {
    policy.director = MakeNaiveDirector(shape, options);
  } else if (name == "static") {
    policy.director = MakeStaticDirector(shape, options);
    policy.hot_set_is_guess = options.hot_counts.empty();
  } else if (name == "lru") {
    policy.director = MakeLruDirector(shape, options);
  } else if (name == "simple") {
    policy.director = MakeSimpleDirector(shape, options);
  } else if (name == "hub") {
    auto hub = std::make_unique<HubDirector>(shape, options);
    policy.hub = hub.get();
    policy.director = std::move(hub);
  } else if (name == "resident") {
    COMOE_ASSIGN_OR_RETURN(policy.director, MakeResidentDirector(shape, options));
  } else {
    return absl::InvalidArgumentError(absl::StrCat("no policy is called \"", name, "\": choose one of ",
                                                   absl::StrJoin(kPolicyNames, ", ")));
  }
  return policy;
}

}  // namespace comoe::routing
