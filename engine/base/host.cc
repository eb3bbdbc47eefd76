#include "engine/base/host.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/thread_pool.h"

namespace comoe::base {
namespace {

std::string ReadSmallFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The value of `key:  N kB` in /proc/meminfo or /proc/self/status, in bytes; 0 if absent.
std::uint64_t ProcKilobytes(const std::string& path, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(ReadSmallFile(path), '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    std::uint64_t value = 0;
    if (words.size() >= 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) {
      return value * 1024;
    }
  }
  return 0;
}

bool ReadNumber(const std::string& path, std::uint64_t* value) {
  const std::string text = ReadSmallFile(path);
  return absl::SimpleAtoi(absl::string_view(text), value);
}

// This process's own cgroup folder below `mount` (below `root`), for the hierarchy whose line in
// /proc/self/cgroup holds `marker`.
std::vector<std::string> CgroupFolders(const std::string& root, absl::string_view mount_point,
                                       absl::string_view marker) {
  const std::string mount = absl::StrCat(root, mount_point);
  std::vector<std::string> folders;
  for (absl::string_view line :
       absl::StrSplit(ReadSmallFile(absl::StrCat(root, "/proc/self/cgroup")), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() == 3 && parts[1] == marker) {
      // Limits of the ancestors hold too.
      std::string path = parts[2];
      while (!path.empty() && path != "/") {
        folders.push_back(absl::StrCat(mount, path));
        path.resize(path.rfind('/'));
      }
    }
  }
  folders.push_back(mount);
  return folders;
}

}  // namespace

HostMemory ReadHostMemory(const std::string& root) {
  HostMemory memory;
  memory.limit_bytes = ProcKilobytes(absl::StrCat(root, "/proc/meminfo"), "MemTotal");
  memory.available_bytes = ProcKilobytes(absl::StrCat(root, "/proc/meminfo"), "MemAvailable");
  memory.source = "/proc/meminfo";
  const auto apply = [&memory](std::uint64_t limit, std::uint64_t usage, const char* source) {
    // v1 writes "no limit" as a huge number.
    if (limit == 0 || limit >= memory.limit_bytes) {
      return;
    }
    memory.limit_bytes = limit;
    memory.available_bytes = std::min(memory.available_bytes, limit > usage ? limit - usage : 0);
    memory.source = source;
  };
  for (const std::string& folder : CgroupFolders(root, "/sys/fs/cgroup", "")) {
    std::uint64_t limit = 0;
    std::uint64_t usage = 0;
    if (ReadNumber(absl::StrCat(folder, "/memory.max"), &limit) &&
        ReadNumber(absl::StrCat(folder, "/memory.current"), &usage)) {
      apply(limit, usage, "cgroup v2");
    }
  }
  for (const std::string& folder : CgroupFolders(root, "/sys/fs/cgroup/memory", "memory")) {
    std::uint64_t limit = 0;
    std::uint64_t usage = 0;
    if (ReadNumber(absl::StrCat(folder, "/memory.limit_in_bytes"), &limit) &&
        ReadNumber(absl::StrCat(folder, "/memory.usage_in_bytes"), &usage)) {
      apply(limit, usage, "cgroup v1");
    }
  }
  return memory;
}

std::uint64_t ResidentBytes() { return ProcKilobytes("/proc/self/status", "VmRSS"); }
std::uint64_t PeakResidentBytes() { return ProcKilobytes("/proc/self/status", "VmHWM"); }

double CpuQuotaCores(const std::string& root) {
  double cores = 0.0;
  const auto apply = [&cores](double quota, double period) {
    if (quota > 0 && period > 0) {
      cores = cores == 0.0 ? quota / period : std::min(cores, quota / period);
    }
  };
  for (const std::string& folder : CgroupFolders(root, "/sys/fs/cgroup", "")) {
    const std::string text = ReadSmallFile(absl::StrCat(folder, "/cpu.max"));
    const std::vector<absl::string_view> words =
        absl::StrSplit(absl::string_view(text), absl::ByAnyChar(" \n"), absl::SkipEmpty());
    double quota = 0;
    double period = 0;
    if (words.size() == 2 && absl::SimpleAtod(words[0], &quota) && absl::SimpleAtod(words[1], &period)) {
      apply(quota, period);
    }
  }
  for (const std::string& folder : CgroupFolders(root, "/sys/fs/cgroup/cpu", "cpu,cpuacct")) {
    std::uint64_t quota = 0;
    std::uint64_t period = 0;
    if (ReadNumber(absl::StrCat(folder, "/cpu.cfs_quota_us"), &quota) &&
        ReadNumber(absl::StrCat(folder, "/cpu.cfs_period_us"), &period)) {
      apply(static_cast<double>(quota), static_cast<double>(period));
    }
  }
  return cores;
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = 1;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    cores = std::max(1, CPU_COUNT(&set));
  }
  const double quota = CpuQuotaCores();
  return quota > 0.0 ? std::clamp(static_cast<int>(quota), 1, cores) : cores;
}

}  // namespace comoe::base
