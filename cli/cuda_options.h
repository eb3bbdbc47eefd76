// From flags to a CUDA device: whether there is one, and what runs on it.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/engine_options.h"
#include "engine/device/cuda/cuda_device.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"

namespace comoe::cli {

// --device auto: cuda where there is such a device, else the cpu and, in one line, why (device_reason).
void ChooseDevice(EngineOptions& options);

// What the flags ask of the device.
device::CudaOptions CudaOptionsOf(const EngineOptions& options);

// --device cuda. UNAVAILABLE says in one line why there is none.
absl::StatusOr<std::unique_ptr<device::Device>> MakeCudaDevice(const EngineOptions& options);

// The kernels for --activations. Where the plugin was built without, each launch says so (UNAVAILABLE).
const kernels::KernelTable& CudaKernelsFor(const EngineOptions& options);

}  // namespace comoe::cli
