#include "engine/device/hardware/pci.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace comoe::device {
namespace {

constexpr std::int64_t kDisplayClass = 0x03;
constexpr std::int64_t kAcceleratorClass = 0x12;
constexpr int kMostLanes = 32;  // registers that nobody filled in read as 63 or 255

// "0000:01:00.0", the name of a folder of a PCI function.
bool IsPciAddress(absl::string_view name) {
  const auto hex = [&name](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(name[i]))) {
        return false;
      }
    }
    return true;
  };
  return name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.' && hex(0, 4) && hex(5, 7) &&
         hex(8, 10) && hex(11, 12);
}

// "16.0 GT/s PCIe"; 0 for "Unknown".
double ReadSpeed(const SystemFiles& files, const std::string& path) {
  return std::strtod(files.Read(path).c_str(), nullptr);
}

int ReadWidth(const SystemFiles& files, const std::string& path) {
  const std::int64_t width = files.ReadNumber(path).value_or(0);
  return width > 0 && width <= kMostLanes ? static_cast<int>(width) : 0;
}

PciPort ReadPort(const SystemFiles& files, const std::string& folder, absl::string_view address) {
  PciPort port;
  port.address = std::string(address);
  port.speed_gts = ReadSpeed(files, folder + "/current_link_speed");
  port.max_speed_gts = ReadSpeed(files, folder + "/max_link_speed");
  port.width = ReadWidth(files, folder + "/current_link_width");
  port.max_width = ReadWidth(files, folder + "/max_link_width");
  return port;
}

std::string ReadName(const SystemFiles& files, const PciAccelerator& card) {
  const std::string information =
      files.Read(absl::StrCat("/proc/driver/nvidia/gpus/", card.address, "/information"));
  for (absl::string_view line : absl::StrSplit(information, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.first == "Model") {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return absl::StrFormat("%04x:%04x", card.vendor, card.product);
}

// The lesser of two of which 0 is not known.
template <typename T>
T Lesser(T a, T b) {
  return a == 0 || (b != 0 && b < a) ? b : a;
}

}  // namespace

std::vector<PciAccelerator> FindAccelerators(const SystemFiles& files) {
  constexpr absl::string_view kDevices = "/sys/bus/pci/devices";
  std::vector<PciAccelerator> cards;
  for (const std::string& address : files.List(kDevices)) {
    const std::string folder = absl::StrCat(kDevices, "/", address);
    const std::int64_t kind = files.ReadNumber(folder + "/class").value_or(0) >> 16;
    if (kind != kDisplayClass && kind != kAcceleratorClass) {
      continue;
    }
    PciAccelerator card;
    card.address = address;
    card.vendor = static_cast<std::uint32_t>(files.ReadNumber(folder + "/vendor").value_or(0));
    card.product = static_cast<std::uint32_t>(files.ReadNumber(folder + "/device").value_or(0));
    card.numa_node = static_cast<int>(files.ReadNumber(folder + "/numa_node").value_or(-1));
    const std::string driver = files.Resolve(folder + "/driver");
    card.driver = driver.substr(driver.rfind('/') + 1);
    card.name = ReadName(files, card);
    // /sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0: each function's folder lies in its upstream one's.
    std::string at = files.Resolve(folder);
    while (!at.empty()) {
      const std::size_t slash = at.rfind('/');
      const std::string name = at.substr(slash + 1);
      if (!IsPciAddress(name)) {
        break;
      }
      card.path.push_back(ReadPort(files, at, name));
      at.resize(slash);
    }
    cards.push_back(std::move(card));
  }
  return cards;
}

PciLink Narrowest(const PciAccelerator& card) {
  PciLink link;
  for (const PciPort& port : card.path) {
    if (port.width != 0 && (link.width == 0 || port.width < link.width)) {
      link.narrowest = port.address;
    }
    link.width = Lesser(link.width, port.width);
    link.speed_gts = Lesser(link.speed_gts, port.speed_gts);
    link.max_width = Lesser(link.max_width, port.max_width);
    link.max_speed_gts = Lesser(link.max_speed_gts, port.max_speed_gts);
  }
  if (!card.path.empty()) {
    link.card_width = card.path.front().max_width;
    link.card_speed_gts = card.path.front().max_speed_gts;
  }
  return link;
}

double LinkBytesPerSecond(double speed_gts, int width) {
  const double code = speed_gts <= 5.0 ? 0.8 : (speed_gts <= 32.0 ? 128.0 / 130.0 : 242.0 / 256.0);
  return speed_gts * 1e9 / 8.0 * code * width;
}

std::string LinkName(double speed_gts, int width) {
  constexpr std::array<double, 7> kSpeeds = {2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0};
  for (std::size_t i = 0; i < kSpeeds.size(); ++i) {
    if (speed_gts == kSpeeds[i]) {
      return absl::StrFormat("PCIe %d.0 x%d", i + 1, width);
    }
  }
  return absl::StrFormat("%g GT/s x%d", speed_gts, width);
}

}  // namespace comoe::device
