// Probe: does capacity, the link or scheduling bind? From the short run, beside floors.
#include "cli/doctor_binding.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"

namespace comoe::cli {
namespace {

// A lane that works less than this share of the time leaves room for better scheduling.
constexpr double kBusy = 0.6;

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100.0 * share); }

std::string RemedyFor(Binding binding) {
  switch (binding) {
    case Binding::kScheduling:
      return "look ahead further (--policy hub --hub look_ahead=2), more rows a step, --host-lane on; "
             "--timeline "
             "shows who waits for whom";
    case Binding::kCapacity:
      return "more slots: --expert-cache-bytes, a smaller KV, smaller weights";
    case Binding::kLink:
      return "a faster link (link.width, link.rate), --host-lane on, or more slots";
    default:
      return "";
  }
}

}  // namespace

BindingVerdict JudgeBinding(const BindingInput& in) {
  const double link = in.step > 0.0 ? in.link_busy / in.step : 0.0;
  const double compute = in.step > 0.0 ? in.compute / in.step : 0.0;
  const double floor = std::max(in.link_busy, in.compute);
  BindingVerdict verdict;
  if (in.step <= 0.0) {
    return verdict;
  }
  const std::string lanes = absl::StrFormat("link busy %s, device busy %s of the step, hits %s",
                                            Percent(link), Percent(compute), Percent(in.hit_rate));
  if (std::max(link, compute) < kBusy) {
    verdict.binding = Binding::kScheduling;
    verdict.reason = absl::StrFormat("%s: neither is; all hidden, a step would take %.3f ms instead of %.3f",
                                     lanes, 1e3 * floor, 1e3 * in.step);
    return verdict;
  }
  if (compute >= link) {
    verdict.binding = Binding::kCompute;
    verdict.reason = absl::StrCat(lanes, ": copies are hidden, the device itself is the limit");
    return verdict;
  }
  // What half the bytes' time would leave: of the step, only what the link took beyond compute goes away.
  const double faster_link = in.step - (floor - std::max(in.compute, 0.5 * in.link_busy));
  verdict.link_gain = in.step / faster_link;
  verdict.capacity_gain = in.roomy_step > 0.0 ? in.step / in.roomy_step : 0.0;
  verdict.binding = verdict.capacity_gain >= verdict.link_gain ? Binding::kCapacity : Binding::kLink;
  verdict.reason = absl::StrCat(
      lanes, ": the link is full; twice its rate would give x", absl::StrFormat("%.2f", verdict.link_gain),
      in.roomy_step > 0.0 ? absl::StrFormat(", twice the slots x%.2f (measured)", verdict.capacity_gain)
                          : ", more slots were not tried");
  return verdict;
}

absl::Status ProbeBinding(DoctorContext& context) {
  DoctorReport& report = context.report;
  if (context.engine().device == "cpu") {
    if (!context.plan.has_value() || context.read_bytes_per_second <= 0.0) {
      report.binding_reason = "no model (--model DIR)";
      return absl::OkStatus();
    }
    const checkpoint::MemoryPlan& plan = *context.plan;
    const double bytes =
        static_cast<double>(plan.experts_per_token_bytes + plan.resident_bytes - plan.embedding_bytes);
    report.binding = Binding::kHostMemory;
    report.binding_reason = absl::StrFormat(
        "experts are computed where they lie; a token reads %.1f MB, so that one sequence gets at most %.0f "
        "tokens/s",
        bytes * 1e-6, context.read_bytes_per_second / bytes);
    context.Add("binding", Severity::kOk, absl::StrCat("host memory: ", report.binding_reason));
    return absl::OkStatus();
  }
  if (!context.run.has_value()) {
    report.binding_reason = context.plan.has_value() ? "nothing was run" : "no model (--model DIR)";
    return absl::OkStatus();
  }
  const api::OffloadTotals& totals = context.run->totals;
  const auto steps = static_cast<double>(context.options.steps);
  const auto served = static_cast<double>(totals.served_hit + totals.served_fetch + totals.served_host);
  BindingInput in;
  in.step = totals.wall / steps;
  in.compute = totals.compute / steps;
  in.link_busy = totals.copy_busy[base::CopyDirection::kHostToDevice] / steps;
  in.hit_rate = served > 0.0 ? static_cast<double>(totals.served_hit) / served : 0.0;
  in.roomy_step = context.roomy_run.has_value() ? context.roomy_run->totals.wall / steps : 0.0;
  const BindingVerdict verdict = JudgeBinding(in);
  report.binding = verdict.binding;
  report.binding_reason = verdict.reason;
  Finding& found = context.Add(
      "binding", verdict.binding == Binding::kScheduling ? Severity::kFinding : Severity::kOk,
      absl::StrCat(BindingName(verdict.binding), ": ", verdict.reason),
      absl::StrFormat("a step near its floor of %.3f ms", 1e3 * std::max(in.link_busy, in.compute)),
      RemedyFor(verdict.binding));
  found.values = {{"step_seconds", in.step},
                  {"link_floor_seconds", in.link_busy},
                  {"compute_floor_seconds", in.compute},
                  {"hit_rate", in.hit_rate},
                  {"roomy_step_seconds", in.roomy_step},
                  {"link_gain", verdict.link_gain},
                  {"capacity_gain", verdict.capacity_gain}};
  return absl::OkStatus();
}

}  // namespace comoe::cli
