// A machine of one's own: /proc and /sys as files in a temporary folder, for what reads them.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace comoe::testing {

// Sound by default: 64 GiB of memory in two channels of DDR5-6000, 16 cores, no limits, and a card with 16
// lanes of PCIe 4.0 whose driver is loaded. Gone with the object.
class FakeMachine {
 public:
  static constexpr const char* kCard = "0000:01:00.0";
  static constexpr const char* kRootPort = "0000:00:01.0";

  // One at a time in a test, or several with names of their own.
  explicit FakeMachine(const std::string& name = "machine")
      : root_(std::filesystem::path(::testing::TempDir()) /
              absl::StrCat("comoe_", name, "_", ::testing::UnitTest::GetInstance()->random_seed(), "_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       67108864 kB\nMemAvailable:   62914560 kB\n");
    Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Processor\n");
    Write("/proc/self/cgroup", "0::/\n");
    Write("/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
    Write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
    Write("/proc/loadavg", "0.10 0.20 0.30 1/100 1000\n");
    Write("/proc/driver/nvidia/version", "NVRM version: some\n");
    Write(absl::StrCat("/proc/driver/nvidia/gpus/", kCard, "/information"),
          "Model: \t\t Some Card\nIRQ: 1\n");
    Write("/dev/nvidiactl", "");
    Write("/sys/devices/system/cpu/online", "0-15\n");
    Write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    Write("/sys/devices/system/node/has_memory", "0\n");
    Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    Write("/sys/firmware/dmi/tables/DMI",
          absl::StrCat(Module("P0 CHANNEL A", 6000, 6000), Module("P0 CHANNEL B", 6000, 6000), EndOfTable()));
    AddFunction(kRootPort, "", "0x060400");
    AddFunction(kCard, kRootPort, "0x030000");
    SetLink(kRootPort, 16, 16, "16.0 GT/s PCIe", "16.0 GT/s PCIe");
    SetLink(kCard, 16, 16, "16.0 GT/s PCIe", "16.0 GT/s PCIe");
  }
  ~FakeMachine() { std::filesystem::remove_all(root_); }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  std::string root() const { return root_.string(); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path real = root_.string() + path;
    std::filesystem::create_directories(real.parent_path());
    std::ofstream(real, std::ios::binary) << text;
  }
  void Remove(const std::string& path) { std::filesystem::remove_all(root_.string() + path); }

  // A PCI function below another, or below the host bridge.
  void AddFunction(const std::string& address, const std::string& parent, const std::string& kind) {
    folders_[address] =
        absl::StrCat(parent.empty() ? "/sys/devices/pci0000:00" : folders_[parent], "/", address);
    Write(folders_[address] + "/class", kind + "\n");
    Write(folders_[address] + "/vendor", "0x10de\n");
    Write(folders_[address] + "/device", "0x2684\n");
    const std::filesystem::path bus = root_.string() + "/sys/bus/pci/devices";
    std::filesystem::create_directories(bus);
    std::filesystem::create_directory_symlink(absl::StrCat("../../..", folders_[address].substr(4)),
                                              bus / address);
  }
  void SetLink(const std::string& address, int width, int max_width, const std::string& speed,
               const std::string& max_speed) {
    const std::string folder = folders_[address];
    Write(folder + "/current_link_width", absl::StrCat(width, "\n"));
    Write(folder + "/max_link_width", absl::StrCat(max_width, "\n"));
    Write(folder + "/current_link_speed", speed + "\n");
    Write(folder + "/max_link_speed", max_speed + "\n");
  }

  // A structure of SMBIOS type 17 of 16 GiB.
  static std::string Module(const std::string& bank, int made_for, int runs_at) {
    std::string area(0x22, '\0');
    const auto word = [&area](std::size_t at, int value) {
      area[at] = static_cast<char>(value & 0xff);
      area[at + 1] = static_cast<char>(value >> 8);
    };
    area[0] = 17;
    area[1] = static_cast<char>(area.size());
    word(0x0C, 16384);
    area[0x10] = 1;
    area[0x11] = 2;
    word(0x15, made_for);
    word(0x20, runs_at);
    return area + "DIMM 0" + std::string(1, '\0') + bank + std::string(2, '\0');
  }
  static std::string EndOfTable() { return std::string({127, 4, 0, 0, 0, 0}); }

 private:
  const std::filesystem::path root_;
  std::map<std::string, std::string> folders_;  // of PCI functions, below the root
};

}  // namespace comoe::testing
