// What `comoe doctor` says of the machine, over descriptions made up for it.
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "cli/doctor.h"
#include "cli/hardware_lines.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/doctor/doctor_rig.h"

namespace comoe::cli {
namespace {

using ::testing::Contains;
using testing::FakeMachine;
using ::testing::HasSubstr;

TEST(DoctorMachineTest, ALinkAtHalfItsWidthIsNamed) {
  DoctorRig rig;
  rig.machine.SetLink(FakeMachine::kCard, 8, 16, "16.0 GT/s PCIe", "16.0 GT/s PCIe");
  rig.machine.SetLink(FakeMachine::kRootPort, 8, 16, "16.0 GT/s PCIe", "16.0 GT/s PCIe");
  const DoctorReport report = rig.Report();
  ExpectFinding(report, "link.width", Severity::kFinding, "x8 now", "reseat");
  EXPECT_THAT(report.hardware, Contains(HasSubstr("only 8 of 16 lanes")));
}

TEST(DoctorMachineTest, ANarrowSlotIsNamed) {
  DoctorRig rig;
  rig.machine.SetLink(FakeMachine::kCard, 4, 16, "16.0 GT/s PCIe", "16.0 GT/s PCIe");
  rig.machine.SetLink(FakeMachine::kRootPort, 4, 4, "16.0 GT/s PCIe", "16.0 GT/s PCIe");
  ExpectFinding(rig.Report(), "link.width", Severity::kFinding, "can do x4", "slot");
}

TEST(DoctorMachineTest, ASlowLinkIsNamedWhereBytesMove) {
  DoctorRig rig;
  rig.machine.SetLink(FakeMachine::kCard, 16, 16, "2.5 GT/s PCIe", "16.0 GT/s PCIe");
  ExpectFinding(rig.Report(), "link.speed", Severity::kFinding, "PCIe 1.0 x16 while bytes moved", "ASPM");
  rig.options.engine.device = "cpu";
  rig.options.engine.policy = "";
  ExpectFinding(rig.Report(), "link.speed", Severity::kNote, "idle");
}

TEST(DoctorMachineTest, AHiddenLinkIsNoted) {
  DoctorRig rig;
  rig.machine.SetLink(FakeMachine::kCard, 0, 0, "Unknown", "Unknown");
  rig.machine.SetLink(FakeMachine::kRootPort, 0, 0, "Unknown", "Unknown");
  ExpectFinding(rig.Report(), "link.width", Severity::kNote, "not readable", "host");
}

TEST(DoctorMachineTest, AMissingGpuIsNamedWithTheReason) {
  DoctorRig rig;
  rig.options.engine.device = "cuda";
  rig.options.engine.policy = "";
  rig.options.engine.make_device = [] { return absl::UnavailableError("the driver is too old"); };
  ExpectFinding(rig.Report(), "gpu.present", Severity::kFailure, "too old", "driver at least as new");
  rig.machine.Remove("/dev/nvidiactl");
  ExpectFinding(rig.Report(), "gpu.present", Severity::kFailure, "/dev/nvidiactl", "--gpus all");
  rig.machine.Remove("/proc/driver/nvidia");
  ExpectFinding(rig.Report(), "gpu.present", Severity::kFailure, "driver is not loaded", "nvidia-smi");
  rig.machine.Remove("/sys/bus/pci");
  ExpectFinding(rig.Report(), "gpu.present", Severity::kFailure, "no NVIDIA card", "lspci");
  rig.options.engine.device = "cpu";
  ExpectFinding(rig.Report(), "gpu.present", Severity::kOk, "no NVIDIA card");
}

TEST(DoctorMachineTest, MemoryOverTheCgroupLimitIsNamed) {
  DoctorRig rig;
  rig.UseModel();
  rig.machine.Write("/sys/fs/cgroup/memory.max", "33554432\n");
  rig.machine.Write("/sys/fs/cgroup/memory.current", "1048576\n");
  const DoctorReport report = rig.Report();
  ExpectFinding(report, "plan.fits", Severity::kFailure, "weights", "memory limit of the container");
  EXPECT_THAT(report.Find("plan.fits")->expected, HasSubstr("cgroup v2"));
  ExpectFinding(report, "run.steps", Severity::kNote, "not run");
}

TEST(DoctorMachineTest, ALowLimitOfLockedMemoryIsNoted) {
  DoctorRig rig;
  rig.UseModel();
  rig.machine.Write("/proc/self/limits",
                    "Max locked memory         65536                65536                bytes\n");
  ExpectFinding(rig.Report(), "plan.memlock", Severity::kNote, "the limit is 64.0 KiB", "ulimit -l");
}

TEST(DoctorMachineTest, MemoryModulesAreJudged) {
  DoctorRig rig;
  rig.options.engine.device = "cpu";
  rig.options.engine.policy = "";
  rig.machine.Write("/sys/firmware/dmi/tables/DMI",
                    absl::StrCat(FakeMachine::Module("P0 CHANNEL A", 6000, 4800), FakeMachine::EndOfTable()));
  const DoctorReport report = rig.Report();
  ExpectFinding(report, "memory.modules", Severity::kFinding, "at 4800 MT/s", "XMP");
  ExpectFinding(report, "memory.channels", Severity::kFinding, "1 with a module", "spread");
  rig.machine.Remove("/sys/firmware");
  ExpectFinding(rig.Report(), "memory.modules", Severity::kNote, "not readable",
                ::geteuid() == 0 ? "the machine hides it" : "sudo");
}

TEST(DoctorMachineTest, SlowMemoryIsNamed) {
  DoctorRig rig;
  rig.options.engine.device = "cpu";
  rig.options.engine.policy = "";
  std::string table;
  for (const char channel : {'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K', 'L'}) {
    table += FakeMachine::Module(absl::StrCat("CHANNEL ", std::string(1, channel)), 60000, 60000);
  }
  rig.machine.Write("/sys/firmware/dmi/tables/DMI", table + FakeMachine::EndOfTable());
  ExpectFinding(rig.Report(), "memory.read_rate", Severity::kFinding, "% of nominal", "profile");
}

TEST(DoctorMachineTest, SettingsOfTheHostAreJudged) {
  DoctorRig rig;
  rig.options.engine.device = "cpu";
  rig.options.engine.policy = "";
  rig.options.engine.threads = 2;
  rig.machine.Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  rig.machine.Write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  rig.machine.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  rig.machine.Write("/proc/swaps", "Filename Type Size Used Priority\n/swap file 2048 1024 -2\n");
  rig.machine.Write("/sys/devices/system/node/has_memory", "0-1\n");
  const DoctorReport report = rig.Report();
  ExpectFinding(report, "host.cores", Severity::kFinding, "quota is 1", "--threads");
  ExpectFinding(report, "host.load", Severity::kOk, "0.10 over the last minute; usable cores: 1");
  ExpectFinding(report, "host.governor", Severity::kNote, "powersave", "performance");
  ExpectFinding(report, "host.huge_pages", Severity::kFinding, "never", "madvise");
  ExpectFinding(report, "host.swap", Severity::kFinding, "in use", "swapoff");
  ExpectFinding(report, "host.numa", Severity::kNote, "2 nodes", "numactl");
}

TEST(DoctorMachineTest, ABusyMachineIsNoted) {
  DoctorRig rig;
  rig.options.engine.device = "cpu";
  rig.options.engine.policy = "";
  rig.machine.Write("/proc/loadavg", "9999.50 1.00 0.50 3/400 12345\n");
  ExpectFinding(rig.Report(), "host.load", Severity::kNote, "9999.50", "when it is idle");
  rig.machine.Remove("/proc/loadavg");
  ExpectFinding(rig.Report(), "host.load", Severity::kNote, "not readable");
}

TEST(DoctorMachineTest, HardwareLinesTellTheMachine) {
  FakeMachine machine;
  const std::vector<std::string> lines = HardwareLines(device::SystemFiles(machine.root()));
  EXPECT_THAT(lines, Contains(HasSubstr("Some Processor")));
  EXPECT_THAT(lines, Contains(HasSubstr("2 modules on 2 channels at 6000 MT/s")));
  EXPECT_THAT(lines, Contains(HasSubstr("Some Card at 0000:01:00.0, PCIe 4.0 x16 now")));
  machine.Remove("/sys/bus/pci");
  EXPECT_THAT(HardwareLines(device::SystemFiles(machine.root())), Contains(HasSubstr("no NVIDIA card")));
}

}  // namespace
}  // namespace comoe::cli
