// Settings of the host that decide how fast it can be, as /proc and /sys tell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/device/hardware/system_files.h"

namespace comoe::device {

struct HostFacts {
  std::string processor;                       // "": not readable
  int online_cores = 0;                        // of the machine
  double quota_cores = 0;                      // what the cgroup allows; 0: no limit
  std::string governor;                        // of the first core's clock; "": not readable
  std::string huge_pages;                      // transparent ones: always, madvise, never; "": not readable
  std::optional<std::uint64_t> memlock_bytes;  // what may be page-locked; nullopt: unlimited
  bool memlock_readable = false;
  std::uint64_t swap_bytes = 0;
  std::uint64_t swap_used_bytes = 0;
  int numa_nodes = 1;          // with memory
  std::optional<double> load;  // threads that ran or wanted to, on average over the last minute
};

HostFacts ReadHostFacts(const SystemFiles& files);

}  // namespace comoe::device
