// Probe of the memory plan: does it add up, and does it fit?
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/cuda_options.h"
#include "cli/doctor_probes.h"
#include "cli/engine_memory.h"
#include "cli/offload_options.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/device/hardware/host_facts.h"

namespace comoe::cli {
namespace {

// The parts of the plan against its own total.
void JudgeSum(const checkpoint::MemoryPlan& plan, DoctorContext& context) {
  const std::uint64_t resident = plan.embedding_bytes + plan.head_bytes + plan.attention_bytes +
                                 plan.router_bytes + plan.shared_bytes + plan.dense_bytes + plan.vector_bytes;
  const std::uint64_t sum = resident + static_cast<std::uint64_t>(plan.num_experts) * plan.expert_bytes;
  Finding& found = context.Add(
      "plan.sum", sum == plan.total_bytes ? Severity::kOk : Severity::kFailure,
      absl::StrCat("experts ", base::FormatBytes(plan.all_experts_bytes), " + others ",
                   base::FormatBytes(resident), " = ", base::FormatBytes(sum)),
      base::FormatBytes(plan.total_bytes), "a mistake of this program: please report it with config.json");
  found.values = {{"expert_bytes", static_cast<double>(plan.expert_bytes)},
                  {"all_expert_bytes", static_cast<double>(plan.all_experts_bytes)},
                  {"resident_bytes", static_cast<double>(resident)},
                  {"total_bytes", static_cast<double>(plan.total_bytes)}};
}

void JudgeHost(std::uint64_t weights, std::uint64_t kv, DoctorContext& context) {
  const std::uint64_t usable = UsableBytes(context.host);
  context.plan_fits = weights <= usable && kv <= usable - weights;
  const bool cgroup = context.host.source != "/proc/meminfo";
  Finding& found = context.Add(
      "plan.fits", context.plan_fits ? Severity::kOk : Severity::kFailure,
      absl::StrCat("weights with tiers ", base::FormatBytes(weights), " + KV ", base::FormatBytes(kv), " = ",
                   base::FormatBytes(weights + kv)),
      absl::StrCat("at most ", base::FormatBytes(usable), ": 95 % of what is free of ",
                   cgroup ? absl::StrCat("the limit of ", context.host.source, ", ") : "",
                   base::FormatBytes(context.host.limit_bytes)),
      cgroup ? "raise the memory limit of the container (--memory, resources.limits.memory, MemoryMax), or "
               "lower "
               "--kv-bytes or --pinned-bytes"
             : "free memory, lower --kv-bytes, or keep part of the experts in a file (--expert-file)");
  found.values = {{"weight_bytes", static_cast<double>(weights)},
                  {"kv_bytes", static_cast<double>(kv)},
                  {"usable_bytes", static_cast<double>(usable)},
                  {"limit_bytes", static_cast<double>(context.host.limit_bytes)}};
}

void JudgeDevice(std::uint64_t weights, std::uint64_t kv, DoctorContext& context) {
  const bool emulated = context.device->id().kind == device::DeviceKind::kEmulated;
  const base::HostMemory card = ReadDeviceMemory(*context.device);
  const bool fits = emulated || weights + kv <= UsableBytes(card);
  context.plan_fits = context.plan_fits && fits;
  Finding& found = context.Add(
      "plan.device", fits ? Severity::kOk : Severity::kFailure,
      absl::StrCat("slots and staging ", base::FormatBytes(weights - context.plan->resident_bytes),
                   " + other weights ", base::FormatBytes(context.plan->resident_bytes), " + KV ",
                   base::FormatBytes(kv), " = ", base::FormatBytes(weights + kv)),
      emulated ? "no limit: emulated"
               : absl::StrCat("at most ", base::FormatBytes(UsableBytes(card)), ": 95 % of what is free"),
      "lower --expert-cache-bytes or --expert-cache-fraction, or --kv-bytes");
  found.values = {{"weight_bytes", static_cast<double>(weights)}, {"kv_bytes", static_cast<double>(kv)}};
}

void JudgeMemlock(const TierBudget& budget, DoctorContext& context) {
  const device::HostFacts host = device::ReadHostFacts(context.files);
  const auto slots = static_cast<std::uint64_t>(budget.pinned_slots + budget.pinned_staging_slots);
  const std::uint64_t pinned = context.engine().page_lock == "off" ? 0 : slots * context.plan->expert_bytes;
  const bool over = host.memlock_bytes.has_value() && pinned > *host.memlock_bytes;
  Finding& found = context.Add(
      "plan.memlock", over ? Severity::kNote : Severity::kOk,
      absl::StrCat(base::FormatBytes(pinned), " to be page-locked; the limit is ",
                   !host.memlock_readable
                       ? "not readable"
                       : (host.memlock_bytes.has_value() ? base::FormatBytes(*host.memlock_bytes) : "none")),
      "no limit, or a higher one",
      "ulimit -l unlimited (LimitMEMLOCK=infinity, --ulimit memlock=-1); some drivers do not ask for it, "
      "link.pinned says whether this one was refused");
  found.values = {{"pinned_bytes", static_cast<double>(pinned)}};
}

}  // namespace

absl::Status ProbePlan(DoctorContext& context) {
  if (!context.plan.has_value()) {
    context.Add("plan.fits", Severity::kNote, "not looked at: no model", "",
                "--model DIR checks a model's memory, its tiers, and what binds");
    return absl::OkStatus();
  }
  const EngineOptions& options = context.engine();
  JudgeSum(*context.plan, context);
  const absl::StatusOr<std::uint64_t> weights = HostBytes(options, *context.plan);
  if (!weights.ok()) {
    return absl::OkStatus();  // the tiers cannot be: tiers.slots says so
  }
  // Where keys and values lie, and what lies there beside them.
  const bool apart = options.device == "cuda";
  std::uint64_t kv = 0;
  if (!apart) {
    COMOE_ASSIGN_OR_RETURN(kv, KvBytes(options, context.model->config, *context.plan, context.host));
  }
  JudgeHost(*weights, kv, context);
  if (context.device == nullptr) {
    return absl::OkStatus();
  }
  checkpoint::MemoryPlan on_device = *context.plan;
  COMOE_ASSIGN_OR_RETURN(on_device.total_bytes, DeviceBytes(options, *context.plan));
  if (apart) {
    COMOE_ASSIGN_OR_RETURN(
        kv, KvBytes(options, context.model->config, on_device, ReadDeviceMemory(*context.device)));
  }
  JudgeDevice(on_device.total_bytes, kv, context);
  COMOE_ASSIGN_OR_RETURN(const TierBudget budget,
                         PlanTiers(options, context.plan->num_experts, context.plan->expert_bytes));
  JudgeMemlock(budget, context);
  return absl::OkStatus();
}

}  // namespace comoe::cli
