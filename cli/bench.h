// The measurements of `comoe bench`: one file each; all measure the machine first, so that a rate stands
// beside what is possible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/device/device.h"

namespace CLI {
class App;
}  // namespace CLI

namespace comoe::cli {

void AddBenchKernelsCommand(CLI::App& bench, absl::Status& result);
void AddBenchModelCommand(CLI::App& bench, absl::Status& result);
void AddBenchOffloadCommand(CLI::App& bench, absl::Status& result);
void AddBenchSchedulerCommand(CLI::App& bench, absl::Status& result);
void AddBenchServeCommand(CLI::App& bench, absl::Status& result);

// What `threads` threads can do at best here.
struct MachineRates {
  int threads = 1;
  double read_bytes_per_second = 0;  // of memory, no cache holds it
  double flops_per_second = 0;       // float32 multiply-adds, two operations each
};

// Memory that no cache holds, filled with small BF16 values: what bandwidth is measured on, and weights that
// are never warm.
class ColdMemory {
 public:
  static constexpr std::size_t kBytes = std::size_t{2} << 30;
  // RESOURCE_EXHAUSTED when the machine has not that much to spare.
  static absl::StatusOr<ColdMemory> Create(device::Device& device);
  const std::byte* data() const { return buffer_.data(); }

 private:
  device::Buffer buffer_;
};

// Best of several runs, on a CPU device of that many threads: about a second.
absl::StatusOr<MachineRates> MeasureMachine(const ColdMemory& memory, int threads);

double Seconds(absl::FunctionRef<void()> work);
double Median(std::vector<double> values);  // at least one

// "1,2" to its numbers, each in [low, high]; `flag` is what messages call it.
absl::StatusOr<std::vector<std::int64_t>> ParseList(absl::string_view flag, absl::string_view text,
                                                    std::int64_t low, std::int64_t high);
// "1,2" with a thread for each usable core at most: {1}, or {1, cores}.
std::string DefaultThreads();

// "2 threads: 28.1 GB/s of memory, 265 GFLOP/s".
std::string Describe(const MachineRates& rates);

}  // namespace comoe::cli
