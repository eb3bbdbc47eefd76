#include "cli/bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/command.h"
#include "engine/base/bytes.h"
#include "engine/base/host.h"
#include "engine/base/rng.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/kernels/cpu/machine_peaks.h"

namespace comoe::cli {
namespace {

constexpr int kRuns = 5;
constexpr std::int64_t kPartsPerThread = 8;

}  // namespace

absl::StatusOr<ColdMemory> ColdMemory::Create(device::Device& device) {
  const std::uint64_t available = base::ReadHostMemory().available_bytes;
  if (available < kBytes + kBytes / 4) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "bandwidth is measured on ", base::FormatBytes(kBytes), " that no cache holds, but only ",
        base::FormatBytes(available), " are available: free some memory"));
  }
  ColdMemory memory;
  COMOE_ASSIGN_OR_RETURN(memory.buffer_, device.Allocate(device::MemoryKind::kHost, kBytes, 4096));
  // BF16 values below a thirtieth: products of them neither overflow nor become subnormal.
  for (std::size_t i = 0; i < kBytes; i += 8) {
    const std::uint64_t bits = (base::RandomBits(1, i) & 0x807f807f807f807fULL) | 0x3d003d003d003d00ULL;
    std::memcpy(memory.buffer_.data() + i, &bits, 8);
  }
  return memory;
}

absl::StatusOr<MachineRates> MeasureMachine(const ColdMemory& memory, int threads) {
  const std::unique_ptr<device::Device> device = device::MakeCpuDevice(threads);
  COMOE_ASSIGN_OR_RETURN(const std::unique_ptr<device::Stream> stream,
                         device->CreateStream("bench", device::StreamKind::kCompute));
  base::ThreadPool& pool = stream->cpu()->pool();
  const std::int64_t parts = threads * kPartsPerThread;
  const std::size_t part = ColdMemory::kBytes / static_cast<std::size_t>(parts) / 256 * 256;
  // Kept, so that no compiler finds the work useless; one for each task, so that threads share nothing.
  std::vector<std::uint64_t> read(static_cast<std::size_t>(parts));
  std::vector<float> computed(static_cast<std::size_t>(threads));
  double best_read = std::numeric_limits<double>::infinity();
  double best_compute = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    best_read = std::min(best_read, Seconds([&] {
                           pool.ParallelFor(parts, [&](std::int64_t task, int /*worker*/) {
                             const auto i = static_cast<std::size_t>(task);
                             read[i] = kernels::ReadAll(memory.data() + i * part, part);
                           });
                         }));
    best_compute = std::min(best_compute, Seconds([&] {
                              pool.ParallelFor(threads, [&](std::int64_t task, int /*worker*/) {
                                computed[static_cast<std::size_t>(task)] =
                                    kernels::MultiplyAdds(kernels::kPeakRounds);
                              });
                            }));
  }
  MachineRates rates;
  rates.threads = threads;
  rates.read_bytes_per_second = static_cast<double>(part) * static_cast<double>(parts) / best_read;
  rates.flops_per_second = kernels::MultiplyAddFlops(kernels::kPeakRounds) * threads / best_compute;
  return rates;
}

double Seconds(absl::FunctionRef<void()> work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::StatusOr<std::vector<std::int64_t>> ParseList(absl::string_view flag, absl::string_view text,
                                                    std::int64_t low, std::int64_t high) {
  std::vector<std::int64_t> numbers;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    std::int64_t number = 0;
    if (!absl::SimpleAtoi(item, &number) || number < low || number > high) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is '", text, "': numbers in [", low, ", ", high,
                                                     "] with commas between them"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

std::string DefaultThreads() {
  const int cores = base::UsableCores();
  return cores == 1 ? "1" : absl::StrCat("1,", cores);
}

std::string Describe(const MachineRates& rates) {
  return absl::StrFormat("%d thread%s: %.1f GB/s of memory, %.0f GFLOP/s", rates.threads,
                         rates.threads == 1 ? "" : "s", rates.read_bytes_per_second * 1e-9,
                         rates.flops_per_second * 1e-9);
}

void AddBenchCommand(CLI::App& app, absl::Status& result) {
  CLI::App* command = app.add_subcommand("bench", "measure speed, beside what this machine can do at best");
  command->require_subcommand(1);
  AddBenchModelCommand(*command, result);
  AddBenchOffloadCommand(*command, result);
  AddBenchKernelsCommand(*command, result);
  AddBenchServeCommand(*command, result);
  AddBenchSchedulerCommand(*command, result);
}

}  // namespace comoe::cli
