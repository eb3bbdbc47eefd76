// When a kernel spreads over the threads of its stream's pool, and how wide.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "engine/device/cpu/cpu_device.h"

namespace comoe::kernels {

// What one thread does in a nanosecond, roughly: weights read from memory, and floating-point operations
// (`comoe bench kernels`: 14 to 28 GB/s and 110 to 150 GFLOP/s on the AVX-512 machine).
inline constexpr double kBytesPerNs = 14.0;
inline constexpr double kFlopsPerNs = 120.0;
// Less than this is not worth a thread: a loop over a pool whose workers look for work costs half a
// microsecond.
inline constexpr double kMinTaskNs = 2'000.0;
// Each thread gets a second piece, a third, ... when pieces are this long: claiming one costs its cache line.
inline constexpr double kFullTaskNs = 20'000.0;

// Of the stream's pool; 1 where there is none.
std::int64_t NumThreads(device::Stream& stream);

// How many pieces to cut work of `ns` into: 1 when a second thread does not pay, otherwise one for each
// thread, or a few where the work is long, so that a busy neighbour on one core does not hold up the others.
std::int64_t NumPieces(device::Stream& stream, double ns);

// Calls fn for each task, on the pool of the stream, or on the calling thread where it has none.
void ForTasks(device::Stream& stream, std::int64_t num_tasks, absl::FunctionRef<void(std::int64_t)> fn);

// Calls fn for each row of [0, num_rows), each `row_ns` of one thread's work: ranges of rows in parallel
// where that pays.
template <class Fn>
void ForRows(device::Stream& stream, std::int64_t num_rows, double row_ns, const Fn& fn) {
  const std::int64_t pieces = std::min(num_rows, NumPieces(stream, row_ns * static_cast<double>(num_rows)));
  ForTasks(stream, pieces, [&](std::int64_t piece) {
    for (std::int64_t t = num_rows * piece / pieces; t < num_rows * (piece + 1) / pieces; ++t) {
      fn(t);
    }
  });
}

}  // namespace comoe::kernels
