// Kernels of the emulated accelerator: the CPU's, and after each the stream is told how much work it was.
#pragma once

#include "engine/kernels/kernel_table.h"

namespace comoe::kernels {

// "emulated/cpu/AVX3", ...: the same bits as CpuKernels(). On a stream that is not an emulated device's it is
// CpuKernels().
const KernelTable& EmulatedKernels();

}  // namespace comoe::kernels
