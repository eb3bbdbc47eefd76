// What this process may use of the machine: cores and memory, as its affinity mask and cgroup allow.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace comoe::base {

struct HostMemory {
  std::uint64_t limit_bytes = 0;      // the cgroup's limit, or all memory of the machine
  std::uint64_t available_bytes = 0;  // what can be had now: the lesser of MemAvailable and limit - usage
  std::string source;                 // "cgroup v2", "cgroup v1" or "/proc/meminfo"
};

// `root` goes before /proc and /sys: tests describe other machines there.
HostMemory ReadHostMemory(const std::string& root = "");
// Cores' worth of time that the cgroup allows; 0: no limit.
double CpuQuotaCores(const std::string& root = "");
// Resident set of this process, and its highest value so far.
std::uint64_t ResidentBytes();
std::uint64_t PeakResidentBytes();

}  // namespace comoe::base
