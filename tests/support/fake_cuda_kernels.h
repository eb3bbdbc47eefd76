// Kernels for the fake CUDA device: the reference loops, in the order of the stream.
#pragma once

#include "engine/kernels/kernel_table.h"

namespace comoe::testing {

// The same bits as RefKernels() on the CPU device.
const kernels::KernelTable& FakeCudaKernels();

}  // namespace comoe::testing
