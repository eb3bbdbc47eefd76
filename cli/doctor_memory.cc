// Probe of the host's memory: its modules, and how fast it is read.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench.h"
#include "cli/doctor_probes.h"
#include "engine/base/bytes.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/hardware/memory_modules.h"
#include "engine/kernels/cpu/machine_peaks.h"

namespace comoe::cli {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{16} << 20;
constexpr double kGoodShare = 0.5;  // of the modules' nominal rate; sound machines reach 0.6 to 0.85
constexpr int kRuns = 4;
constexpr std::int64_t kPartsPerThread = 8;

// Of all threads together, the fastest of several runs. 0: there is no memory to spare for it.
absl::StatusOr<double> MeasureReads(int threads, std::uint64_t most_bytes) {
  const std::uint64_t spare = base::ReadHostMemory().available_bytes / 4;
  const std::size_t bytes = std::min(most_bytes, spare);
  if (bytes < kLeastBytes) {
    return 0.0;
  }
  const std::unique_ptr<device::Device> device = device::MakeCpuDevice(threads);
  COMOE_ASSIGN_OR_RETURN(const device::Buffer memory,
                         device->Allocate(device::MemoryKind::kHost, bytes, 4096));
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream,
                         device->CreateStream("doctor", device::StreamKind::kCompute));
  base::ThreadPool& pool = stream->cpu()->pool();
  const std::int64_t parts = threads * kPartsPerThread;
  const std::size_t part = bytes / static_cast<std::size_t>(parts) / 256 * 256;
  std::vector<std::uint64_t> read(static_cast<std::size_t>(parts));  // so that no compiler finds it useless
  // Every page is written first: untouched ones would all be the same page of zeros.
  pool.ParallelFor(parts, [&](std::int64_t task, int /*worker*/) {
    for (std::size_t at = 0; at < part; at += 4096) {
      memory.data()[static_cast<std::size_t>(task) * part + at] = std::byte{1};
    }
  });
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    best = std::min(best, Seconds([&] {
                      pool.ParallelFor(parts, [&](std::int64_t task, int /*worker*/) {
                        const auto i = static_cast<std::size_t>(task);
                        read[i] = kernels::ReadAll(memory.data() + i * part, part);
                      });
                    }));
  }
  return static_cast<double>(part) * static_cast<double>(parts) / best;
}

void JudgeModules(const device::MemoryModules& modules, DoctorContext& context) {
  if (modules.source.empty()) {
    context.Add("memory.modules", Severity::kNote, "not readable",
                "clock and channels from SMBIOS (root) or EDAC",
                ::geteuid() == 0 ? "none: the machine hides it, even from root (a virtual machine?)"
                                 : "run comoe doctor as root once: sudo comoe doctor");
    return;
  }
  const bool slow =
      modules.max_mega_transfers > 0 && modules.mega_transfers < 0.95 * modules.max_mega_transfers;
  Finding& found = context.Add(
      "memory.modules", slow ? Severity::kFinding : Severity::kOk,
      absl::StrCat(modules.modules, " modules",
                   modules.mega_transfers > 0 ? absl::StrFormat(" at %.0f MT/s", modules.mega_transfers)
                                              : ", clock not readable",
                   modules.mixed ? ", of different speeds" : "", " (", modules.source, ")"),
      modules.max_mega_transfers > 0
          ? absl::StrFormat("%.0f MT/s, what they are made for", modules.max_mega_transfers)
          : "",
      "switch the memory profile on in the firmware (XMP, EXPO), or use fewer modules a channel");
  found.values = {{"modules", modules.modules},
                  {"mega_transfers", modules.mega_transfers},
                  {"max_mega_transfers", modules.max_mega_transfers}};
  if (modules.channels > 0) {
    context
        .Add("memory.channels", modules.channels == 1 ? Severity::kFinding : Severity::kOk,
             absl::StrCat(modules.channels, " with a module"), "every channel of the board, two at least",
             "spread the modules over the channels: see the board's manual for which sockets come first")
        .values = {{"channels", modules.channels}};
  }
}

}  // namespace

absl::Status ProbeMemory(DoctorContext& context) {
  const device::MemoryModules modules = device::ReadMemoryModules(context.files);
  JudgeModules(modules, context);
  const int threads = context.engine().threads > 0 ? context.engine().threads : base::UsableCores();
  COMOE_ASSIGN_OR_RETURN(const double rate, MeasureReads(threads, context.options.read_bytes));
  context.read_bytes_per_second = rate;
  if (rate == 0.0) {
    context.Add("memory.read_rate", Severity::kNote, "not measured: too little memory is free",
                absl::StrCat(base::FormatBytes(4 * kLeastBytes), " free"));
    return absl::OkStatus();
  }
  const double nominal = modules.bytes_per_second();
  const bool slow = nominal > 0.0 && rate < kGoodShare * nominal;
  Finding& found = context.Add(
      "memory.read_rate", slow ? Severity::kFinding : Severity::kOk,
      absl::StrFormat("%.1f GB/s by %d threads%s", rate * 1e-9, threads,
                      nominal > 0.0 ? absl::StrFormat(", %.0f %% of nominal", 100.0 * rate / nominal) : ""),
      nominal > 0.0 ? absl::StrFormat("at least %.0f %% of %.0f GB/s", 100.0 * kGoodShare, nominal * 1e-9)
                    : "nominal not known (memory.modules)",
      "more threads if cores are left, the firmware's memory profile, and nothing else that uses the memory");
  found.values = {{"bytes_per_second", rate}, {"nominal_bytes_per_second", nominal}, {"threads", threads}};
  return absl::OkStatus();
}

}  // namespace comoe::cli
