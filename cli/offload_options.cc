#include "cli/offload_options.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint_folder.h"
#include "cli/cuda_options.h"
#include "cli/routing_trace.h"
#include "engine/base/bytes.h"
#include "engine/base/log.h"
#include "engine/base/mapped_file.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/device/emulated/emulated_device.h"

namespace comoe::cli {
namespace {

constexpr double kDefaultCacheShare = 0.25;
// One staging slot for every eight of the device's, so that the copy of the next miss overlaps the work on
// this one; more than a few hide nothing.
constexpr std::int64_t kSlotsPerStaging = 8;
constexpr std::int64_t kMaxStaging = 4;

constexpr std::uint64_t kStateLimitBytes = std::uint64_t{1} << 30;

// Rates of a study: an expert's copy takes as long as `copy_computes` of its computations on the device.
device::EmulatedRates StudyRates(const EngineOptions& options, device::EmulatedRates rates,
                                 std::uint64_t blob_bytes) {
  rates.link_latency_seconds = 0.0;
  rates.device_launch_seconds = 0.0;
  const double copy = static_cast<double>(blob_bytes) / rates.link_bytes_per_second;
  rates.device_seconds_per_expert = copy / options.copy_computes;
  rates.host_seconds_per_expert = *rates.device_seconds_per_expert * options.host_computes;
  rates.dense_seconds_per_kernel = *rates.device_seconds_per_expert * options.dense_computes;
  return rates;
}

std::int64_t Share(double share, std::int64_t num_experts) {
  return static_cast<std::int64_t>(std::floor(share * static_cast<double>(num_experts) + 1e-9));
}

// How many experts the device's budget has room for, at least one.
absl::StatusOr<std::int64_t> DeviceSlots(const EngineOptions& options, double hub_share,
                                         std::int64_t num_experts, std::uint64_t blob_bytes) {
  if (!options.expert_cache_bytes.empty()) {
    COMOE_ASSIGN_OR_RETURN(const std::uint64_t bytes, base::ParseBytes(options.expert_cache_bytes));
    if (bytes < blob_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("--expert-cache-bytes is less than one expert of ",
                                                     base::FormatBytes(blob_bytes), ": raise it"));
    }
    return static_cast<std::int64_t>(
        std::min<std::uint64_t>(bytes / blob_bytes, std::numeric_limits<std::int32_t>::max()));
  }
  if (options.policy == "resident" && options.expert_cache_fraction < 0.0) {
    return num_experts;
  }
  double share = hub_share > 0.0 ? hub_share : kDefaultCacheShare;
  if (options.expert_cache_fraction >= 0.0) {
    share = options.expert_cache_fraction;
  }
  return std::max<std::int64_t>(1, Share(share, num_experts));
}

}  // namespace

absl::StatusOr<routing::HubParameters> HubParametersOf(const EngineOptions& options) {
  routing::HubParameters parameters = routing::ConservativeParameters();  // where sweeps start; not a flag
  if (options.hub_mode != "conservative") {
    COMOE_ASSIGN_OR_RETURN(const routing::HubMode mode, routing::ParseHubMode(options.hub_mode));
    parameters = routing::ModeParameters(mode);
  }
  if (!options.hub_set.empty()) {
    COMOE_RETURN_IF_ERROR(routing::SetHubParameters(options.hub_set, &parameters));
  }
  return parameters;
}

absl::Status CheckOffloadOptions(const EngineOptions& options) {
  if (options.expert_cache_fraction > 1.0 || options.expert_cache_fraction == 0.0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--expert-cache-fraction is ", options.expert_cache_fraction, ": it lies in (0, 1]"));
  }
  if (!options.expert_cache_bytes.empty() && options.expert_cache_fraction >= 0.0) {
    return absl::InvalidArgumentError("give --expert-cache-bytes or --expert-cache-fraction, not both");
  }
  return device::PresetRates(options.emulated).status();
}

absl::StatusOr<std::unique_ptr<device::Device>> MakeOffloadDevice(const EngineOptions& options,
                                                                  std::uint64_t blob_bytes) {
  if (options.device == "cuda") {
    return MakeCudaDevice(options);
  }
  device::EmulatedOptions emulated;
  COMOE_ASSIGN_OR_RETURN(emulated.rates, device::PresetRates(options.emulated));
  if (options.rates != nullptr) {
    emulated.rates = *options.rates;
  }
  if (options.copy_computes > 0.0) {
    emulated.rates = StudyRates(options, emulated.rates, blob_bytes);
  }
  emulated.real_clock = options.emulated_clock == "real";
  emulated.threads = options.threads > 0 ? options.threads : base::UsableCores();
  emulated.refuse_pinned = options.refuse_pinned;
  emulated.serial = options.serial;
  emulated.copy_faults = options.copy_faults;
  return device::MakeEmulatedDevice(std::move(emulated));
}

absl::StatusOr<TierBudget> PlanTiers(const EngineOptions& options, std::int64_t num_experts,
                                     std::uint64_t blob_bytes) {
  TierBudget budget;
  routing::HubParameters hub;  // tier budgets among them; flags go first
  if (options.policy == "hub") {
    COMOE_ASSIGN_OR_RETURN(hub, HubParametersOf(options));
  }
  COMOE_ASSIGN_OR_RETURN(const std::int64_t slots,
                         DeviceSlots(options, hub.device_share, num_experts, blob_bytes));
  if (options.policy == "resident") {
    if (slots < num_experts) {
      return absl::FailedPreconditionError(
          absl::StrCat("--policy resident needs room for all ", num_experts,
                       " experts on the device, and there is some for ", slots,
                       ": raise --expert-cache-bytes or --expert-cache-fraction, or choose another policy"));
    }
    budget.device_slots = num_experts;
  } else {
    // What is kept and what passes through share the budget. `naive` keeps nothing and passes one at a time.
    const auto asked = static_cast<std::int64_t>(hub.staging_slots);
    const std::int64_t staging = options.policy == "naive" ? 1
                                 : asked > 0
                                     ? std::min(asked, slots)
                                     : std::clamp<std::int64_t>(slots / kSlotsPerStaging, 1, kMaxStaging);
    // Where all fit, nothing passes through, and what is reserved for it comes on top, as with `resident`.
    const bool all = slots >= num_experts && options.policy != "naive";
    budget.device_staging_slots = all ? 1 : staging;
    budget.device_slots = options.policy == "naive" ? 0 : all ? num_experts : slots - staging;
  }
  budget.pinned_slots = Share(hub.pinned_share, num_experts);
  if (!options.pinned_bytes.empty()) {
    COMOE_ASSIGN_OR_RETURN(const std::uint64_t bytes, base::ParseBytes(options.pinned_bytes));
    budget.pinned_slots = std::min<std::int64_t>(num_experts, static_cast<std::int64_t>(bytes / blob_bytes));
  } else if (!options.expert_file.empty()) {
    budget.pinned_slots = std::max<std::int64_t>(1, num_experts / 2);
  }
  if (options.tiers == "exclusive") {
    budget.pinned_slots = std::min(budget.pinned_slots, num_experts - budget.device_slots);
  }
  return budget;
}

absl::Status ReadHubState(const std::string& path, std::uint64_t model_hash, routing::HubDirector& hub) {
  if (!IsThere(path)) {
    base::Logf(base::LogLevel::kInfo, "hub", "%s is not there yet: the hub starts cold", path);
    return absl::OkStatus();
  }
  COMOE_ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(path, kStateLimitBytes));
  COMOE_RETURN_IF_ERROR(base::Annotate(
      hub.LoadState(model_hash, {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}), path));
  base::Logf(base::LogLevel::kInfo, "hub", "starts warm with what %s says", path);
  return absl::OkStatus();
}

absl::Status WriteHubState(const std::string& path, std::uint64_t model_hash, routing::HubDirector& hub) {
  const std::vector<std::uint8_t> state = hub.SaveState(model_hash);
  return base::WriteFileAtomically(path, {reinterpret_cast<const char*>(state.data()), state.size()});
}

absl::StatusOr<routing::Policy> MakeOffloadPolicy(const EngineOptions& options, const api::ModelInfo& info,
                                                  const routing::TierShape& shape) {
  routing::PolicyOptions policy;
  policy.host_lane = options.host_lane == "on";
  policy.expert_bytes = info.expert_bytes;
  COMOE_ASSIGN_OR_RETURN(policy.hub, HubParametersOf(options));
  if (options.device == "cuda" || options.emulated_clock == "real") {
    policy.clock = [] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    };
  }
  std::string trace = options.hot_trace;
  if (trace.empty() && options.policy == "static" && IsThere(options.model + "/routing_trace.npz")) {
    trace = options.model + "/routing_trace.npz";
  }
  if (!trace.empty()) {
    COMOE_ASSIGN_OR_RETURN(const RoutingTrace recorded, ReadRoutingTrace(trace, info));
    const std::vector<std::vector<double>> counts = CountExperts(recorded, info.num_experts);
    policy.hot_counts.resize(shape.num_keys());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      for (std::size_t e = 0; e < counts[i].size(); ++e) {
        policy.hot_counts[shape.Index({shape.moe_layers[i], static_cast<std::int32_t>(e)})] = counts[i][e];
      }
    }
  }
  return routing::MakePolicy(options.policy, shape, policy);
}

}  // namespace comoe::cli
