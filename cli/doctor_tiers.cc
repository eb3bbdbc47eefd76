// Probe of the tiers as they are planned: slots, staging, and bytes that nobody uses.
#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"
#include "cli/offload_options.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"

namespace comoe::cli {
namespace {

constexpr double kMuchWaste = 0.1;

void JudgeSlots(const TierBudget& budget, DoctorContext& context) {
  const checkpoint::MemoryPlan& plan = *context.plan;
  const std::int64_t per_layer = context.model->config.experts_per_token;
  const std::int64_t token = plan.num_sparse_layers * per_layer;
  const bool naive = context.engine().policy == "naive";
  const std::int64_t slots = budget.device_slots;
  Severity severity = Severity::kOk;
  if (!naive && slots < std::min(token, plan.num_experts)) {
    severity = slots < per_layer ? Severity::kFailure : Severity::kFinding;
  }
  Finding& found = context.Add(
      "tiers.slots", severity,
      absl::StrFormat("%d slots and %d for staging on the device, of %d experts (%.0f %%)", slots,
                      budget.device_staging_slots, plan.num_experts,
                      100.0 * static_cast<double>(slots) /
                          static_cast<double>(std::max<std::int64_t>(plan.num_experts, 1))),
      absl::StrFormat("at least %d: %d experts in %d layers for one token", token, per_layer,
                      plan.num_sparse_layers),
      "the device budget is too small: a token's experts push each other out; raise --expert-cache-bytes or "
      "--expert-cache-fraction");
  found.values = {{"device_slots", static_cast<double>(slots)},
                  {"device_staging_slots", static_cast<double>(budget.device_staging_slots)},
                  {"experts", static_cast<double>(plan.num_experts)},
                  {"experts_of_a_token", static_cast<double>(token)}};
  context.Add("tiers.cache", naive ? Severity::kFinding : Severity::kOk,
              naive ? "off: --policy naive copies every expert when it is needed and keeps none"
                    : absl::StrCat("policy ", context.engine().policy, " keeps experts on the device"),
              "a policy that keeps experts", "--policy hub, or simple");
}

void JudgePinned(const TierBudget& budget, DoctorContext& context) {
  const std::int64_t experts = context.plan->num_experts;
  const std::int64_t elsewhere =
      context.engine().tiers == "exclusive" ? experts - budget.device_slots : experts;
  Finding& found =
      context.Add("tiers.pinned", budget.pinned_slots < elsewhere ? Severity::kNote : Severity::kOk,
                  absl::StrFormat("%d page-locked slots and %d for staging", budget.pinned_slots,
                                  budget.pinned_staging_slots),
                  absl::StrFormat("%d: all that is not on the device only", elsewhere),
                  "raise --pinned-bytes if host memory allows: what is not there is copied twice");
  found.values = {{"pinned_slots", static_cast<double>(budget.pinned_slots)},
                  {"pinned_staging_slots", static_cast<double>(budget.pinned_staging_slots)}};
}

// Slots are of one size in one slab, so that no holes come about; what is lost is what blobs are filled up
// with, and what of the budget makes no whole slot.
absl::Status JudgeFragmentation(const TierBudget& budget, DoctorContext& context) {
  const checkpoint::MemoryPlan& plan = *context.plan;
  const double element = static_cast<double>(tensor::DTypeBytes(context.model->tensors.expert_dtype));
  const double used = static_cast<double>(plan.expert_parameters) * element;
  const double fill = static_cast<double>(plan.expert_bytes) - used;
  const auto slots = static_cast<double>(budget.device_slots + budget.device_staging_slots);
  double rest = 0.0;
  if (!context.engine().expert_cache_bytes.empty()) {
    COMOE_ASSIGN_OR_RETURN(const std::uint64_t asked, base::ParseBytes(context.engine().expert_cache_bytes));
    rest = std::max(0.0, static_cast<double>(asked) - slots * static_cast<double>(plan.expert_bytes));
  }
  const double wasted = slots * fill + rest;
  const double whole = slots * static_cast<double>(plan.expert_bytes) + rest;
  const double share = whole > 0.0 ? wasted / whole : 0.0;
  Finding& found = context.Add(
      "tiers.fragmentation", share > kMuchWaste ? Severity::kFinding : Severity::kOk,
      absl::StrFormat(
          "one slab of equal slots, no holes; %s unused (%.1f %%): %s a slot to fill panels up, %s "
          "of the budget make no slot",
          base::FormatBytes(static_cast<std::uint64_t>(wasted)), 100.0 * share,
          base::FormatBytes(static_cast<std::uint64_t>(fill)),
          base::FormatBytes(static_cast<std::uint64_t>(rest))),
      absl::StrFormat("at most %.0f %%", 100.0 * kMuchWaste),
      "make --expert-cache-bytes a multiple of an expert's bytes, or no larger than all experts");
  found.values = {{"wasted_bytes", wasted}, {"fill_bytes_of_a_slot", fill}, {"rest_bytes", rest}};
  return absl::OkStatus();
}

}  // namespace

absl::Status ProbeTiers(DoctorContext& context) {
  if (!context.plan.has_value() || context.engine().device == "cpu") {
    return absl::OkStatus();
  }
  const absl::StatusOr<TierBudget> budget =
      PlanTiers(context.engine(), context.plan->num_experts, context.plan->expert_bytes);
  if (!budget.ok()) {
    context.plan_fits = false;
    context.Add("tiers.slots", Severity::kFailure, std::string(budget.status().message()),
                "tiers that can be made",
                "the device budget is too small: raise --expert-cache-bytes or "
                "--expert-cache-fraction");
    return absl::OkStatus();
  }
  JudgeSlots(*budget, context);
  JudgePinned(*budget, context);
  return JudgeFragmentation(*budget, context);
}

}  // namespace comoe::cli
