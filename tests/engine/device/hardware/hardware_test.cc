// What is read of a machine's description in /proc and /sys, over folders made for it.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/host.h"
#include "engine/device/hardware/host_facts.h"
#include "engine/device/hardware/memory_modules.h"
#include "engine/device/hardware/pci.h"
#include "engine/device/hardware/system_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_machine.h"

namespace comoe::device {
namespace {

using ::comoe::testing::FakeMachine;

TEST(SystemFilesTest, WhatIsNotThereIsAbsent) {
  const SystemFiles files("/nowhere at all");
  EXPECT_FALSE(files.Exists("/proc"));
  EXPECT_EQ(files.Read("/proc/meminfo"), "");
  EXPECT_EQ(files.ReadNumber("/proc/meminfo"), std::nullopt);
  EXPECT_TRUE(files.List("/sys").empty());
  EXPECT_EQ(files.Resolve("/sys"), "");
  EXPECT_TRUE(FindAccelerators(files).empty());
  EXPECT_EQ(ReadMemoryModules(files).source, "");
  EXPECT_EQ(ReadHostFacts(files).governor, "");
}

TEST(SystemFilesTest, NumbersInBothBases) {
  FakeMachine machine;
  machine.Write("/a", "0x10de\n");
  machine.Write("/b", "42 and more\n");
  machine.Write("/c", "none\n");
  const SystemFiles files(machine.root());
  EXPECT_EQ(files.ReadNumber("/a"), 0x10de);
  EXPECT_EQ(files.ReadNumber("/b"), 42);
  EXPECT_EQ(files.ReadNumber("/c"), std::nullopt);
}

TEST(PciTest, ACardAndItsPathToTheRootPort) {
  FakeMachine machine;
  const std::vector<PciAccelerator> cards = FindAccelerators(SystemFiles(machine.root()));
  ASSERT_EQ(cards.size(), 1U);
  EXPECT_EQ(cards[0].address, FakeMachine::kCard);
  EXPECT_EQ(cards[0].vendor, kNvidia);
  EXPECT_EQ(cards[0].name, "Some Card");
  ASSERT_EQ(cards[0].path.size(), 2U);
  EXPECT_EQ(cards[0].path[0].address, FakeMachine::kCard);
  EXPECT_EQ(cards[0].path[1].address, FakeMachine::kRootPort);
  const PciLink link = Narrowest(cards[0]);
  EXPECT_EQ(link.width, 16);
  EXPECT_EQ(link.speed_gts, 16.0);
}

TEST(PciTest, ASwitchOnTheWayIsTheNarrowestPart) {
  FakeMachine machine;
  machine.AddFunction("0000:02:00.0", FakeMachine::kRootPort, "0x060400");
  machine.AddFunction("0000:03:00.0", "0000:02:00.0", "0x030200");
  machine.SetLink("0000:02:00.0", 4, 8, "8.0 GT/s PCIe", "16.0 GT/s PCIe");
  machine.SetLink("0000:03:00.0", 16, 16, "16.0 GT/s PCIe", "32.0 GT/s PCIe");
  const std::vector<PciAccelerator> cards = FindAccelerators(SystemFiles(machine.root()));
  ASSERT_EQ(cards.size(), 2U);
  const PciLink link = Narrowest(cards[1]);
  EXPECT_EQ(link.width, 4);
  EXPECT_EQ(link.narrowest, "0000:02:00.0");
  EXPECT_EQ(link.speed_gts, 8.0);
  EXPECT_EQ(link.max_width, 8);
  EXPECT_EQ(link.max_speed_gts, 16.0);
  EXPECT_EQ(link.card_width, 16);
  EXPECT_EQ(link.card_speed_gts, 32.0);
}

TEST(PciTest, UnknownLinksAreNotReadable) {
  FakeMachine machine;
  for (const char* address : {FakeMachine::kCard, FakeMachine::kRootPort}) {
    machine.SetLink(address, 0, 255, "Unknown", "Unknown");
  }
  const PciLink link = Narrowest(FindAccelerators(SystemFiles(machine.root())).front());
  EXPECT_EQ(link.width, 0);
  EXPECT_EQ(link.max_width, 0);
  EXPECT_EQ(link.speed_gts, 0.0);
}

TEST(PciTest, NominalRates) {
  EXPECT_NEAR(LinkBytesPerSecond(2.5, 16), 4.0e9, 1e6);
  EXPECT_NEAR(LinkBytesPerSecond(16.0, 16), 31.5e9, 1e7);
  EXPECT_NEAR(LinkBytesPerSecond(32.0, 8), 31.5e9, 1e7);
  EXPECT_NEAR(LinkBytesPerSecond(64.0, 16), 121e9, 1e9);
  EXPECT_EQ(LinkName(16.0, 8), "PCIe 4.0 x8");
  EXPECT_EQ(LinkName(12.0, 8), "12 GT/s x8");
}

TEST(MemoryModulesTest, FromSmbios) {
  const std::string table = absl::StrCat(
      FakeMachine::Module("P0 CHANNEL A", 6000, 4800), FakeMachine::Module("P0 CHANNEL A", 5600, 4800),
      FakeMachine::Module("P0 CHANNEL B", 6000, 4800), FakeMachine::EndOfTable());
  const MemoryModules modules = ParseDmi(table);
  EXPECT_EQ(modules.source, "DMI");
  EXPECT_EQ(modules.modules, 3);
  EXPECT_EQ(modules.channels, 2);
  EXPECT_EQ(modules.mega_transfers, 4800);
  EXPECT_EQ(modules.max_mega_transfers, 5600);
  EXPECT_TRUE(modules.mixed);
  EXPECT_NEAR(modules.bytes_per_second(), 76.8e9, 1.0);
}

TEST(MemoryModulesTest, EveryBeginningOfATableIsRead) {
  const std::string table =
      absl::StrCat(FakeMachine::Module("BANK 0", 3200, 3200), FakeMachine::EndOfTable());
  for (std::size_t size = 0; size <= table.size(); ++size) {
    const MemoryModules modules = ParseDmi(absl::string_view(table).substr(0, size));
    EXPECT_LE(modules.modules, 1);
    EXPECT_EQ(modules.channels, 0) << "a bank is no channel";
  }
  EXPECT_EQ(ParseDmi(std::string(64, '\xff')).modules, 0);
  EXPECT_EQ(ParseDmi(std::string(64, '\0')).modules, 0);
}

TEST(MemoryModulesTest, FromEdacWhereTablesAreNotReadable) {
  FakeMachine machine;
  machine.Remove("/sys/firmware");
  machine.Write("/sys/devices/system/edac/mc/mc0/dimm0/size", "16384\n");
  machine.Write("/sys/devices/system/edac/mc/mc0/dimm0/dimm_location", "channel 0 slot 0\n");
  machine.Write("/sys/devices/system/edac/mc/mc0/dimm1/size", "16384\n");
  machine.Write("/sys/devices/system/edac/mc/mc0/dimm1/dimm_location", "channel 1 slot 0\n");
  machine.Write("/sys/devices/system/edac/mc/mc0/dimm2/size", "0\n");
  const MemoryModules modules = ReadMemoryModules(SystemFiles(machine.root()));
  EXPECT_EQ(modules.source, "EDAC");
  EXPECT_EQ(modules.modules, 2);
  EXPECT_EQ(modules.channels, 2);
  EXPECT_EQ(modules.bytes_per_second(), 0.0);
}

TEST(HostFactsTest, SoundMachine) {
  FakeMachine machine;
  const HostFacts facts = ReadHostFacts(SystemFiles(machine.root()));
  EXPECT_EQ(facts.processor, "Some Processor");
  EXPECT_EQ(facts.online_cores, 16);
  EXPECT_EQ(facts.quota_cores, 0.0);
  EXPECT_EQ(facts.governor, "performance");
  EXPECT_EQ(facts.huge_pages, "madvise");
  EXPECT_TRUE(facts.memlock_readable);
  EXPECT_FALSE(facts.memlock_bytes.has_value());
  EXPECT_EQ(facts.swap_bytes, 0U);
  EXPECT_EQ(facts.numa_nodes, 1);
}

TEST(HostFactsTest, LimitsAndSwap) {
  FakeMachine machine;
  machine.Write("/proc/self/cgroup", "0::/box\n");
  machine.Write("/sys/fs/cgroup/box/cpu.max", "250000 100000\n");
  machine.Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  machine.Write("/sys/fs/cgroup/box/memory.max", "1073741824\n");
  machine.Write("/sys/fs/cgroup/box/memory.current", "73741824\n");
  machine.Write("/proc/self/limits",
                "Max locked memory         8388608              8388608              bytes\n");
  machine.Write("/proc/swaps", "Filename Type Size Used Priority\n/swap file 2048 1024 -2\n");
  machine.Write("/sys/devices/system/node/has_memory", "0-1\n");
  const HostFacts facts = ReadHostFacts(SystemFiles(machine.root()));
  EXPECT_EQ(facts.quota_cores, 2.5);
  EXPECT_EQ(facts.memlock_bytes, 8388608U);
  EXPECT_EQ(facts.swap_bytes, 2048U * 1024);
  EXPECT_EQ(facts.swap_used_bytes, 1024U * 1024);
  EXPECT_EQ(facts.numa_nodes, 2);
  const base::HostMemory memory = base::ReadHostMemory(machine.root());
  EXPECT_EQ(memory.limit_bytes, 1073741824U);
  EXPECT_EQ(memory.available_bytes, 1000000000U);
  EXPECT_EQ(memory.source, "cgroup v2");
}

}  // namespace
}  // namespace comoe::device
