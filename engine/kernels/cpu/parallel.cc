#include "engine/kernels/cpu/parallel.h"

#include <algorithm>

namespace comoe::kernels {
namespace {

constexpr std::int64_t kPiecesPerThread = 4;

}  // namespace

std::int64_t NumThreads(device::Stream& stream) {
  const device::CpuStream* cpu = stream.cpu();
  return cpu == nullptr ? 1 : cpu->pool().num_threads();
}

std::int64_t NumPieces(device::Stream& stream, double ns) {
  const std::int64_t threads = NumThreads(stream);
  if (threads == 1 || ns < 2 * kMinTaskNs) {
    return 1;
  }
  const double full_rounds = ns / (kFullTaskNs * static_cast<double>(threads));
  const auto pieces =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(full_rounds), 1, kPiecesPerThread) * threads;
  return std::min(static_cast<std::int64_t>(ns / kMinTaskNs), pieces);
}

void ForTasks(device::Stream& stream, std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t)> fn) {
  device::CpuStream* cpu = stream.cpu();
  if (cpu == nullptr || num_tasks <= 1) {
    for (std::int64_t task = 0; task < num_tasks; ++task) {
      fn(task);
    }
    return;
  }
  cpu->pool().ParallelFor(num_tasks, [&fn](std::int64_t task, int /*worker*/) { fn(task); });
}

}  // namespace comoe::kernels
