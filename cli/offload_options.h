// From flags to a device with tiers of experts and a policy: what engine_bundle.cc needs on devices apart
// from the host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/engine_options.h"
#include "engine/api/engine.h"
#include "engine/device/device.h"
#include "scheduler/routing/policy.h"
#include "scheduler/routing/tier_shape.h"

namespace comoe::cli {

// The mode's parameters with what --hub sets. INVALID_ARGUMENT for a name or value that does not exist.
absl::StatusOr<routing::HubParameters> HubParametersOf(const EngineOptions& options);

// INVALID_ARGUMENT or UNIMPLEMENTED for flags that cannot be.
absl::Status CheckOffloadOptions(const EngineOptions& options);

absl::StatusOr<std::unique_ptr<device::Device>> MakeOffloadDevice(const EngineOptions& options,
                                                                  std::uint64_t blob_bytes);

// Slots of each tier: budgets in bytes or shares become places for blobs.
struct TierBudget {
  std::int64_t device_slots = 0;  // experts that are kept
  std::int64_t device_staging_slots = 1;
  std::int64_t pinned_slots = 0;
  std::int64_t pinned_staging_slots = 2;
};
absl::StatusOr<TierBudget> PlanTiers(const EngineOptions& options, std::int64_t num_experts,
                                     std::uint64_t blob_bytes);

// The hub's memory. A file that is not there yet is a cold start; one of another model or damaged is an
// error.
absl::Status ReadHubState(const std::string& path, std::uint64_t model_hash, routing::HubDirector& hub);
absl::Status WriteHubState(const std::string& path, std::uint64_t model_hash, routing::HubDirector& hub);

absl::StatusOr<routing::Policy> MakeOffloadPolicy(const EngineOptions& options, const api::ModelInfo& info,
                                                  const routing::TierShape& shape);

}  // namespace comoe::cli
