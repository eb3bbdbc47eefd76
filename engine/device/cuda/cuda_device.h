// An NVIDIA GPU, through the plugin. Its rules beyond those of device.h:
//  - Compute and copy streams are CUDA streams of their own, none of them the default stream; host streams
//  are
//    threads. Nothing waits for the whole device, except freeing memory.
//  - Host and device share one address space: page-locked memory has the same address for kernels.
//  - Memory is allocated when it is asked for and never in a step, except by CudaStream::Scratch, which
//  grows.
//  - A copy across the link from or to pageable memory is counted, because it is slow and holds up the
//  caller.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/cuda/plugin_api.h"
#include "engine/device/device.h"

namespace comoe::device {

struct CudaOptions {
  int ordinal = 0;
  int host_threads = 1;  // that compute on each host stream which computes
  bool times = true;     // DeviceTimes, timelines and the seconds of events
  bool ranges = false;   // named ranges for a profiler
  // All compute and copy streams are one, as where something in the process serialises the device: for
  // diagnosis.
  bool one_stream = false;
};

// What card `ordinal` is. UNAVAILABLE, in one line, why it cannot be used. Makes nothing there.
absl::StatusOr<CudaProperties> CheckCudaDevice(const CudaPlugin& plugin, int ordinal);

// UNAVAILABLE, in one line, why there is no such device: no plugin, no driver, no card. `plugin` outlives the
// device.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaPlugin& plugin, const CudaOptions& options);

// Copies across the link from or to memory that is not page-locked, since the device was made; 0 for other
// devices.
std::uint64_t PageableCopies(const Device& device);

}  // namespace comoe::device
