// The operations on a CUDA device: from the arguments of the op headers to launches of the plugin.
#pragma once

#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/kernel_table.h"

namespace comoe::kernels {

// Entries for streams of kind compute of a CUDA device, which say what they take for granted about arguments
// (engine/device/cuda/cuda_stream.h). "cuda/exact" or "cuda/bf16". UNAVAILABLE when the plugin has no
// kernels.
const KernelTable& CudaKernels(CudaPrecision precision);

}  // namespace comoe::kernels
