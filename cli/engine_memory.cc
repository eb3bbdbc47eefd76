#include "cli/engine_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/engine_keep.h"
#include "cli/offload_options.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/kv_layout.h"

namespace comoe::cli {
namespace {

// Left to the system, the page cache and buffers of clients.
constexpr double kUsableShare = 0.95;

// As CheckMemory, where weights and KV lie on a card of their own: they must fit there, and the experts below
// it on the host.
absl::StatusOr<std::uint64_t> CheckDeviceMemory(const EngineOptions& options, const CheckpointFolder& folder,
                                                checkpoint::MemoryPlan plan, const device::Device& device) {
  base::HostMemory host = base::ReadHostMemory();
  host.available_bytes += options.keep == nullptr ? 0 : options.keep->experts().bytes();  // used, or freed
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t on_host, HostBytes(options, plan));
  if (on_host > UsableBytes(host)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "'", options.model, "' does not fit: its experts take ", base::FormatBytes(on_host),
        " of host memory, but only ", base::FormatBytes(UsableBytes(host)), " are free here (", host.source,
        "): free memory, lower --pinned-bytes, or keep experts on disk (--expert-file)"));
  }
  const base::HostMemory card = ReadDeviceMemory(device);
  COMOE_ASSIGN_OR_RETURN(plan.total_bytes, DeviceBytes(options, plan));
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, KvBytes(options, folder.config, plan, card));
  if (plan.total_bytes + kv_bytes > UsableBytes(card)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "'", options.model, "' does not fit on the device: weights and expert slots take ",
        base::FormatBytes(plan.total_bytes), " and KV ", base::FormatBytes(kv_bytes), ", but only ",
        base::FormatBytes(UsableBytes(card)), " of ", base::FormatBytes(card.limit_bytes),
        " are free there: lower --expert-cache-bytes, --expert-cache-fraction or --kv-bytes"));
  }
  return kv_bytes;
}

}  // namespace

absl::StatusOr<tensor::DType> KvDType(const EngineOptions& options) {
  if (options.kv_dtype == "f32") {
    return tensor::DType::kF32;
  }
  if (options.kv_dtype == "f16") {
    return tensor::DType::kF16;
  }
  return absl::InvalidArgumentError(absl::StrCat("--kv-dtype is ", options.kv_dtype, ": it is f32 or f16"));
}

absl::StatusOr<checkpoint::MemoryPlan> PlanMemory(const EngineOptions& options,
                                                  const checkpoint::ModelConfig& config,
                                                  tensor::DType dtype) {
  COMOE_ASSIGN_OR_RETURN(const tensor::DType kv_dtype, KvDType(options));
  return checkpoint::PlanMemory(config, dtype, kv_dtype);
}

std::uint64_t UsableBytes(const base::HostMemory& host) {
  return static_cast<std::uint64_t>(static_cast<double>(host.available_bytes) * kUsableShare);
}

base::HostMemory ReadDeviceMemory(const device::Device& device) {
  const device::MemoryInfo info = device.memory(device::MemoryKind::kDevice);
  return {info.total_bytes, info.free_bytes, "device memory"};
}

absl::StatusOr<std::uint64_t> HostBytes(const EngineOptions& options, const checkpoint::MemoryPlan& plan) {
  if (options.device == "cpu") {
    return plan.total_bytes;
  }
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget, PlanTiers(options, plan.num_experts, plan.expert_bytes));
  const bool apart = options.device == "cuda";  // its memory is not the host's
  const std::int64_t device = apart ? 0 : budget.device_slots + budget.device_staging_slots;
  const std::int64_t pinned = budget.pinned_slots + budget.pinned_staging_slots;
  const std::int64_t host =
      options.expert_file.empty() && budget.pinned_slots < plan.num_experts ? plan.num_experts : 0;
  return (apart ? 0 : plan.resident_bytes) +
         static_cast<std::uint64_t>(device + pinned + host) * plan.expert_bytes;
}

absl::StatusOr<std::uint64_t> DeviceBytes(const EngineOptions& options, const checkpoint::MemoryPlan& plan) {
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget, PlanTiers(options, plan.num_experts, plan.expert_bytes));
  // One more slot stands in for a staging slot that is lost.
  const auto slots = static_cast<std::uint64_t>(budget.device_slots + budget.device_staging_slots + 1);
  return plan.resident_bytes + slots * plan.expert_bytes;
}

absl::StatusOr<std::uint64_t> KvBytes(const EngineOptions& options, const checkpoint::ModelConfig& config,
                                      const checkpoint::MemoryPlan& plan, const base::HostMemory& host) {
  if (!options.kv_bytes.empty()) {
    return base::ParseBytes(options.kv_bytes);
  }
  const std::uint64_t whole =
      base::AlignUp(static_cast<std::uint64_t>(config.context_length), tensor::kKvBlockTokens) *
      plan.kv_bytes_per_token * static_cast<std::uint64_t>(options.max_sequences);
  const std::uint64_t usable = UsableBytes(host);
  return std::min(whole, usable > plan.total_bytes ? (usable - plan.total_bytes) / 2 : 0);
}

absl::StatusOr<std::uint64_t> CheckMemory(const EngineOptions& options, const CheckpointFolder& folder,
                                          const device::Device& device) {
  const base::HostMemory host = base::ReadHostMemory();
  COMOE_ASSIGN_OR_RETURN(const checkpoint::MemoryPlan plan,
                         PlanMemory(options, folder.config, folder.tensors.expert_dtype));
  if (options.device == "cuda") {
    return CheckDeviceMemory(options, folder, plan, device);
  }
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t kv_bytes, KvBytes(options, folder.config, plan, host));
  const std::uint64_t usable = UsableBytes(host);
  COMOE_ASSIGN_OR_RETURN(const std::uint64_t weights, HostBytes(options, plan));
  if (weights > usable || kv_bytes > usable - weights) {
    return absl::ResourceExhaustedError(
        absl::StrCat("'", options.model, "' does not fit: weights take ", base::FormatBytes(weights),
                     " and KV ", base::FormatBytes(kv_bytes), ", but only ", base::FormatBytes(usable),
                     " of ", base::FormatBytes(host.limit_bytes), " are free here (", host.source,
                     "): free memory, lower --kv-bytes, or serve a smaller model"));
  }
  return kv_bytes;
}

bool AllFit(const EngineOptions& options, const CheckpointFolder& folder, const device::Device& device) {
  constexpr double kShareOfWeights = 0.8;  // KV and workspace take of the rest
  if (!options.expert_cache_bytes.empty() || options.expert_cache_fraction >= 0.0) {
    return false;
  }
  EngineOptions resident = options;
  resident.policy = "resident";
  const absl::StatusOr<checkpoint::MemoryPlan> plan =
      PlanMemory(resident, folder.config, folder.tensors.expert_dtype);
  const absl::StatusOr<std::uint64_t> bytes =
      plan.ok() ? DeviceBytes(resident, *plan) : absl::StatusOr<std::uint64_t>(plan.status());
  return bytes.ok() && static_cast<double>(*bytes) <
                           kShareOfWeights * static_cast<double>(ReadDeviceMemory(device).available_bytes);
}

}  // namespace comoe::cli
