#include "engine/device/hardware/host_facts.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/host.h"

namespace comoe::device {
namespace {

// The first value of `key` in lines of "key : value".
std::string FieldOf(const std::string& text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, key) && absl::StrContains(line, ':')) {
      return std::string(absl::StripAsciiWhitespace(line.substr(line.find(':') + 1)));
    }
  }
  return "";
}

// Numbers in "0-3,8": how many.
int CountList(absl::string_view list) {
  int count = 0;
  for (const absl::string_view part : absl::StrSplit(list, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    if (absl::SimpleAtoi(ends.front(), &first) && absl::SimpleAtoi(ends.back(), &last) && last >= first) {
      count += last - first + 1;
    }
  }
  return count;
}

// The word in brackets of "always [madvise] never".
std::string Chosen(const std::string& text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : text.substr(open + 1, close - open - 1);
}

// "Max locked memory   8388608   8388608   bytes" of /proc/self/limits: the first, the soft limit.
void ReadMemlock(const SystemFiles& files, HostFacts& facts) {
  constexpr absl::string_view kLine = "Max locked memory";
  const std::string limits = files.Read("/proc/self/limits");
  for (absl::string_view line : absl::StrSplit(limits, '\n')) {
    if (!absl::StartsWith(line, kLine)) {
      continue;
    }
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(kLine.size()), ' ', absl::SkipEmpty());
    std::uint64_t bytes = 0;
    if (!words.empty() && words[0] == "unlimited") {
      facts.memlock_readable = true;
    } else if (!words.empty() && absl::SimpleAtoi(words[0], &bytes)) {
      facts.memlock_readable = true;
      facts.memlock_bytes = bytes;
    }
  }
}

// /proc/swaps: Filename Type Size Used Priority, in KiB.
void ReadSwap(const SystemFiles& files, HostFacts& facts) {
  const std::string swaps = files.Read("/proc/swaps");
  for (absl::string_view line : absl::StrSplit(swaps, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    std::uint64_t size = 0;
    std::uint64_t used = 0;
    if (words.size() >= 4 && absl::SimpleAtoi(words[2], &size) && absl::SimpleAtoi(words[3], &used)) {
      facts.swap_bytes += size * 1024;
      facts.swap_used_bytes += used * 1024;
    }
  }
}

}  // namespace

HostFacts ReadHostFacts(const SystemFiles& files) {
  HostFacts facts;
  facts.processor = FieldOf(files.Read("/proc/cpuinfo"), "model name");
  facts.online_cores = CountList(files.Read("/sys/devices/system/cpu/online"));
  facts.quota_cores = base::CpuQuotaCores(files.root());
  facts.governor = files.Read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  facts.huge_pages = Chosen(files.Read("/sys/kernel/mm/transparent_hugepage/enabled"));
  ReadMemlock(files, facts);
  ReadSwap(files, facts);
  const std::string load = files.Read("/proc/loadavg");
  double last_minute = 0.0;
  if (absl::SimpleAtod(absl::string_view(load).substr(0, load.find(' ')), &last_minute)) {
    facts.load = last_minute;
  }
  facts.numa_nodes = std::max(1, CountList(files.Read("/sys/devices/system/node/has_memory")));
  return facts;
}

}  // namespace comoe::device
