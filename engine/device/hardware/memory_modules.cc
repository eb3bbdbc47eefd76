#include "engine/device/hardware/memory_modules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace comoe::device {
namespace {

// SMBIOS 7.18, "Memory Device": where its fields lie in the formatted area.
constexpr int kMemoryDevice = 17;
constexpr int kEndOfTable = 127;
constexpr std::size_t kHeaderBytes = 4;
constexpr std::size_t kSize = 0x0C;
constexpr std::size_t kDeviceLocator = 0x10;
constexpr std::size_t kBankLocator = 0x11;
constexpr std::size_t kSpeed = 0x15;
constexpr std::size_t kConfiguredSpeed = 0x20;

std::uint8_t Byte(absl::string_view area, std::size_t at) {
  return at < area.size() ? static_cast<std::uint8_t>(area[at]) : std::uint8_t{0};
}
int Word(absl::string_view area, std::size_t at) {
  return at + 1 < area.size() ? Byte(area, at) | Byte(area, at + 1) << 8 : 0;
}

// String number `index` (from 1) of those that follow a structure.
std::string StringAt(absl::string_view strings, int index) {
  for (int i = 1; !strings.empty(); ++i) {
    const std::size_t end = std::min(strings.find('\0'), strings.size());
    if (i == index) {
      return std::string(strings.substr(0, end));
    }
    strings.remove_prefix(std::min(end + 1, strings.size()));
  }
  return "";
}

// "P0 CHANNEL A" and "DIMM_A1, Channel-A" name channels, "BANK 0" does not: from "channel" to the end of the
// next word, with what stands before it (the socket). "" where there is none.
std::string ChannelIn(absl::string_view locator) {
  const std::string lower = absl::AsciiStrToLower(locator);
  const std::size_t at = lower.find("channel");
  if (at == std::string::npos) {
    return "";
  }
  std::size_t end = at + 7;
  const auto is_word = [&lower](std::size_t i) {
    return absl::ascii_isalnum(static_cast<unsigned char>(lower[i]));
  };
  while (end < lower.size() && !is_word(end)) {
    ++end;
  }
  while (end < lower.size() && is_word(end)) {
    ++end;
  }
  return lower.substr(0, end);
}

MemoryModules FromEdac(const SystemFiles& files) {
  constexpr absl::string_view kControllers = "/sys/devices/system/edac/mc";
  MemoryModules found;
  std::set<std::string> channels;
  for (const std::string& controller : files.List(kControllers)) {
    const std::string folder = absl::StrCat(kControllers, "/", controller);
    for (const std::string& dimm : files.List(folder)) {
      if (!absl::StartsWith(dimm, "dimm") && !absl::StartsWith(dimm, "rank")) {
        continue;
      }
      if (files.ReadNumber(absl::StrCat(folder, "/", dimm, "/size")).value_or(0) <= 0) {
        continue;
      }
      ++found.modules;
      const std::string channel = ChannelIn(files.Read(absl::StrCat(folder, "/", dimm, "/dimm_location")));
      if (!channel.empty()) {
        channels.insert(controller + channel);
      }
    }
  }
  if (found.modules > 0) {
    found.source = "EDAC";
    found.channels = static_cast<int>(channels.size());
  }
  return found;
}

}  // namespace

MemoryModules ParseDmi(absl::string_view table) {
  MemoryModules found;
  std::set<std::string> channels;
  bool all_named = true;
  while (table.size() >= kHeaderBytes) {
    const int type = Byte(table, 0);
    const std::size_t length = Byte(table, 1);
    if (length < kHeaderBytes || length > table.size() || type == kEndOfTable) {
      break;
    }
    const absl::string_view area = table.substr(0, length);
    // Strings end with an empty one; without any there are two zeros.
    std::size_t end = length;
    while (end + 1 < table.size() && (table[end] != '\0' || table[end + 1] != '\0')) {
      ++end;
    }
    const absl::string_view strings = table.substr(length, end - length);
    table.remove_prefix(std::min(end + 2, table.size()));
    if (type != kMemoryDevice || Word(area, kSize) == 0) {
      continue;
    }
    ++found.modules;
    std::string channel = ChannelIn(StringAt(strings, Byte(area, kBankLocator)));
    if (channel.empty()) {
      channel = ChannelIn(StringAt(strings, Byte(area, kDeviceLocator)));
    }
    all_named = all_named && !channel.empty();
    channels.insert(channel);
    const double made_for = Word(area, kSpeed);
    const double runs_at = Word(area, kConfiguredSpeed) != 0 ? Word(area, kConfiguredSpeed) : made_for;
    const auto take = [&found](double& least, double value) {
      found.mixed = found.mixed || (least != 0 && value != 0 && value != least);
      least = least == 0 || (value != 0 && value < least) ? value : least;
    };
    take(found.mega_transfers, runs_at);
    take(found.max_mega_transfers, made_for);
  }
  if (found.modules > 0) {
    found.source = "DMI";
    found.channels = all_named ? static_cast<int>(channels.size()) : 0;
  }
  return found;
}

MemoryModules ReadMemoryModules(const SystemFiles& files) {
  const MemoryModules found = ParseDmi(files.Read("/sys/firmware/dmi/tables/DMI"));
  return found.modules > 0 ? found : FromEdac(files);
}

}  // namespace comoe::device
