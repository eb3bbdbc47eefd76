// From flags to a CUDA device: whether there is one, and whether a model fits on it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/engine_options.h"
#include "engine/base/host.h"
#include "engine/checkpoint/memory_plan.h"
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

// The kernels for --activations. UNAVAILABLE: the plugin was built without.
absl::StatusOr<const kernels::KernelTable*> CudaKernelsFor(const EngineOptions& options,
                                                           const device::Device& device);

// The device's memory, as ReadHostMemory tells of the host's.
base::HostMemory ReadDeviceMemory(const device::Device& device);

// What weights and experts take on the device.
absl::StatusOr<std::uint64_t> DeviceBytes(const EngineOptions& options, const checkpoint::MemoryPlan& plan);

}  // namespace comoe::cli
