#include "cli/hardware_lines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/log.h"
#include "engine/base/thread_pool.h"
#include "engine/device/hardware/host_facts.h"
#include "engine/device/hardware/memory_modules.h"
#include "engine/device/hardware/pci.h"
#include "engine/kernels/kernel_table.h"

namespace comoe::cli {

std::vector<std::string> HardwareLines(const device::SystemFiles& files) {
  const device::HostFacts host = device::ReadHostFacts(files);
  const base::HostMemory memory = base::ReadHostMemory(files.root());
  const device::MemoryModules modules = device::ReadMemoryModules(files);
  std::vector<std::string> lines;
  lines.push_back(absl::StrCat("processor: ", host.processor.empty() ? "unknown" : host.processor, ", ",
                               base::UsableCores(), " of ", host.online_cores, " cores usable",
                               host.quota_cores > 0 ? absl::StrFormat(" (quota %.3g)", host.quota_cores) : "",
                               ", kernels ", kernels::CpuKernels().name, ", governor ",
                               host.governor.empty() ? "not readable" : host.governor));
  std::string text = absl::StrCat(
      "memory: ", base::FormatBytes(memory.available_bytes), " of ", base::FormatBytes(memory.limit_bytes),
      " available (", memory.source, "), huge pages ",
      host.huge_pages.empty() ? "not readable" : host.huge_pages, ", page-locked at most ",
      !host.memlock_readable
          ? "unknown"
          : (host.memlock_bytes.has_value() ? base::FormatBytes(*host.memlock_bytes) : "unlimited"),
      ", swap ", host.swap_bytes == 0 ? "none" : base::FormatBytes(host.swap_bytes));
  if (host.numa_nodes > 1) {
    absl::StrAppend(&text, ", ", host.numa_nodes, " NUMA nodes");
  }
  if (modules.source.empty()) {
    absl::StrAppend(&text, ", modules not readable");
  } else {
    absl::StrAppend(&text, ", ", modules.modules, " modules");
    if (modules.channels > 0) {
      absl::StrAppend(&text, " on ", modules.channels, " channels");
    }
    if (modules.mega_transfers > 0) {
      absl::StrAppend(&text, " at ", modules.mega_transfers, " MT/s");
    }
  }
  lines.push_back(std::move(text));
  bool any = false;
  for (const device::PciAccelerator& card : device::FindAccelerators(files)) {
    if (card.vendor != device::kNvidia) {
      continue;
    }
    any = true;
    const device::PciLink link = device::Narrowest(card);
    lines.push_back(absl::StrCat(
        "link: ", card.name, " at ", card.address, ", ",
        link.width == 0
            ? "not readable"
            : absl::StrCat(device::LinkName(link.speed_gts, link.width), " now (idle links clock down), ",
                           device::LinkName(link.card_speed_gts, link.card_width), " at best",
                           link.width < link.card_width
                               ? absl::StrCat(": only ", link.width, " of ", link.card_width, " lanes at ",
                                              link.narrowest, " (comoe doctor)")
                               : "")));
  }
  if (!any) {
    lines.emplace_back("link: no NVIDIA card on the PCI bus");
  }
  return lines;
}

void LogHardware(const std::string& part) {
  for (const std::string& line : HardwareLines(device::SystemFiles())) {
    base::Log(base::LogLevel::kInfo, part, absl::StrCat("hardware: ", line));
  }
}

}  // namespace comoe::cli
