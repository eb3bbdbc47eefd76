#include "engine/kernels/cpu/parallel.h"

#include <algorithm>

namespace comoe::kernels {
namespace {

constexpr std::int64_t kPiecesPerThread = 4;

}  // namespace

std::int64_t NumPieces(device::Stream& stream, double ns) {
  const device::CpuStream* cpu = device::AsCpuStream(stream);
  const std::int64_t threads = cpu == nullptr ? 1 : cpu->pool().num_threads();
  if (threads == 1 || ns < 2 * kMinTaskNs) {
    return 1;
  }
  return std::min(static_cast<std::int64_t>(ns / kMinTaskNs), threads * kPiecesPerThread);
}

void ForTasks(device::Stream& stream, std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t)> fn) {
  device::CpuStream* cpu = device::AsCpuStream(stream);
  if (cpu == nullptr || num_tasks <= 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) {
      fn(task);
    }
    return;
  }
  cpu->pool().ParallelFor(num_tasks, [&fn](std::int64_t task, int /*worker*/) { fn(task); });
}

}  // namespace comoe::kernels
