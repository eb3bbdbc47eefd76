// A CUDA plugin that is none: streams are threads, device memory is host memory that only the "device" may
// touch (a host access ends the program, as it would on a machine with a GPU). So the host code over the
// plugin's functions, and the engine on it, run in tests without a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

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

// Whether what is queued on the stream is kept, to be run later: then it may refer to nothing that will be
// gone.
bool FakeCapturing(void* stream);
// Waits until the stream has done all; not counted. Returns what fails, or 0.
int FakeJoin(void* stream);
// How many captured graphs were run.
std::size_t FakeCudaGraphsRun();
// How often the host has waited for a stream or an event.
std::size_t FakeCudaWaits();

// What fails from now on: every call, with this cudaError_t; 0: none.
void FailFakeCuda(int error);
// From now on a copy between host and device takes its bytes at this rate, and one from or to memory that is
// not page-locked holds up the caller, as CUDA's may; 0: as fast as it goes, and none does.
void PaceFakeCuda(double bytes_per_second);
// The names of ranges that were pushed since the last call, in order; "" stands for a pop.
std::vector<std::string> TakeFakeCudaRanges();
// How many calls that allocate or free were made.
std::size_t FakeCudaAllocations();
// Bytes that copies brought from device memory to the host's.
std::size_t FakeCudaBytesToHost();

}  // namespace comoe::testing
