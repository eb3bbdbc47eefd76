// The fake CUDA plugin with kernels: a launch table whose launches run the reference loops on the fake's
// streams, when their turn comes. So the host's half of the CUDA operations (engine/kernels/cuda/*.cc) runs
// in tests without a GPU, and arguments that do not last until they are read give wrong results.
#pragma once

#include "engine/device/cuda/plugin_api.h"

namespace comoe::testing {

// As FakeCudaPlugin. The bits of RefKernels() on the CPU device.
const device::CudaPlugin& FakeCudaPluginWithKernels();

}  // namespace comoe::testing
