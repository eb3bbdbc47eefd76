// Probe of the host's processor and settings.
#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/doctor_probes.h"
#include "engine/base/bytes.h"
#include "engine/base/thread_pool.h"
#include "engine/device/hardware/host_facts.h"
#include "engine/device/hardware/pci.h"

namespace comoe::cli {
namespace {

// A fixture's quota counts here, though this process is not held to it.
int UsableCores(const device::HostFacts& host) {
  return host.quota_cores > 0.0 ? std::clamp(static_cast<int>(host.quota_cores), 1, base::UsableCores())
                                : base::UsableCores();
}

void JudgeLoad(const device::HostFacts& host, DoctorContext& context) {
  const int usable = UsableCores(host);
  const std::string expected = absl::StrCat("at most ", usable, ", the usable cores");
  if (!host.load.has_value()) {
    context.Add("host.load", Severity::kNote, "not readable", expected);
    return;
  }
  const bool busy = *host.load > usable;
  context
      .Add("host.load", busy ? Severity::kNote : Severity::kOk,
           absl::StrFormat("%.2f over the last minute; usable cores: %d", *host.load, usable), expected,
           "rates and times below mean little on a busy machine: run comoe doctor again when it is idle")
      .values = {{"load", *host.load}, {"usable_cores", usable}};
}

void JudgeCores(const device::HostFacts& host, DoctorContext& context) {
  const int usable = UsableCores(host);
  const int threads = context.engine().threads > 0 ? context.engine().threads : usable;
  const bool limited = host.quota_cores > 0.0 && host.quota_cores < host.online_cores;
  Finding& cores = context.Add(
      "host.cores", threads > usable ? Severity::kFinding : (limited ? Severity::kNote : Severity::kOk),
      absl::StrCat(threads, " compute threads on ", usable, " usable of ", host.online_cores, " cores",
                   limited ? absl::StrFormat("; the cgroup's quota is %.3g cores", host.quota_cores) : ""),
      "a thread for each usable core",
      threads > usable
          ? "lower --threads: above the quota every thread is stopped for the rest of each period"
          : "raise the quota (--cpus, resources.limits.cpu) if the host lane matters");
  cores.values = {{"threads", threads},
                  {"usable_cores", usable},
                  {"online_cores", host.online_cores},
                  {"quota_cores", host.quota_cores}};
}

void JudgeNuma(const device::HostFacts& host, DoctorContext& context) {
  if (host.numa_nodes <= 1) {
    context.Add("host.numa", Severity::kOk, "one node", "one, or pinned to the card's");
    return;
  }
  int node = -1;
  for (const device::PciAccelerator& card : device::FindAccelerators(context.files)) {
    if (card.vendor == device::kNvidia && node < 0) {
      node = card.numa_node;
    }
  }
  context.Add(
      "host.numa", Severity::kNote,
      absl::StrCat(host.numa_nodes, " nodes", node >= 0 ? absl::StrCat("; the card is on node ", node) : ""),
      "memory and threads on the card's node",
      absl::StrCat("start with numactl --cpunodebind=", std::max(node, 0), " --membind=", std::max(node, 0),
                   ", or interleave when the experts need both nodes' memory"));
}

}  // namespace

absl::Status ProbeHost(DoctorContext& context) {
  const device::HostFacts host = device::ReadHostFacts(context.files);
  JudgeCores(host, context);
  JudgeLoad(host, context);
  const std::string kernels = kernels::CpuKernels().name;
  const bool wide = absl::StrContains(kernels, "AVX3");
  const bool narrow = !wide && !absl::StrContains(kernels, "AVX2") && !absl::StrContains(kernels, "SVE") &&
                      !absl::StrContains(kernels, "NEON");
  context.Add("host.kernels", narrow ? Severity::kFinding : (wide ? Severity::kOk : Severity::kNote), kernels,
              "AVX-512 (AVX3...) or AVX2",
              "a virtual machine may hide instructions: give it the host's processor model (cpu=host)");
  if (host.governor.empty()) {
    context.Add("host.governor", Severity::kNote, "not readable", "performance");
  } else {
    const bool saving = host.governor == "powersave" || host.governor == "conservative";
    context.Add("host.governor", saving ? Severity::kNote : Severity::kOk, host.governor, "performance",
                "cpupower frequency-set -g performance");
  }
  if (host.huge_pages.empty()) {
    context.Add("host.huge_pages", Severity::kNote, "not readable", "madvise or always");
  } else {
    context.Add("host.huge_pages", host.huge_pages == "never" ? Severity::kFinding : Severity::kOk,
                host.huge_pages, "madvise or always",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: small pages cost a quarter of a "
                "core's read rate");
  }
  const bool swaps = host.swap_used_bytes > 0;
  context
      .Add("host.swap", swaps ? Severity::kFinding : (host.swap_bytes > 0 ? Severity::kNote : Severity::kOk),
           host.swap_bytes == 0 ? "none"
                                : absl::StrCat(base::FormatBytes(host.swap_used_bytes), " of ",
                                               base::FormatBytes(host.swap_bytes), " in use"),
           "none, or none of it in use",
           "swapoff -a, or a memory limit without swap: weights are read in every step")
      .values = {{"used_bytes", static_cast<double>(host.swap_used_bytes)}};
  JudgeNuma(host, context);
  return absl::OkStatus();
}

}  // namespace comoe::cli
