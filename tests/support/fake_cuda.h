// A CUDA plugin that is none: streams are threads, device memory is host memory that only the "device" may
// touch (a host access ends the program, as it would on a machine with a GPU). So the host code over the
// plugin's functions, and the engine on it, run in tests without a GPU.
#pragma once

#include <cstddef>
#include <functional>

#include "engine/device/cuda/plugin_api.h"

namespace comoe::testing {

// One for the whole process: the functions of a plugin have no object. `device` and `kernels` = nullptr.
const device::CudaPlugin& FakeCudaPlugin();

// While it lives, the calling thread may touch device memory: what a kernel does.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Runs `work` on a fake stream after all that was queued before.
void FakeLaunch(void* stream, std::function<void()> work);

// What fails from now on: every call, with this cudaError_t; 0: none.
void FailFakeCuda(int error);
// How many calls that allocate or free were made.
std::size_t FakeCudaAllocations();

}  // namespace comoe::testing
