// The policies of one binary, by name.
#pragma once

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/expert_director.h"
#include "scheduler/routing/hub_director.h"
#include "scheduler/routing/policy_options.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::routing {

inline constexpr std::array<const char*, 6> kPolicyNames = {"naive",  "static", "lru",
                                                            "simple", "hub",    "resident"};

struct Policy {
  std::unique_ptr<api::ExpertDirector> director;  // owned by the engine thread
  // `static` without counts of a trace: what is on the device is not the hottest. Say so.
  bool hot_set_is_guess = false;
  HubDirector* hub = nullptr;  // `director`, if it is the hub: its report, state and step costs
};

// INVALID_ARGUMENT: a name that is none of kPolicyNames (the message lists them), or numbers out of range.
// FAILED_PRECONDITION: `resident` where not every expert fits.
absl::StatusOr<Policy> MakePolicy(absl::string_view name, const TierShape& shape,
                                  const PolicyOptions& options);

}  // namespace comoe::routing
