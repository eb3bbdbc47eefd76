// Kernels for the fake CUDA device: the reference loops, in the order of the stream.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/kernel_table.h"
#include "engine/kernels/top_logits.h"

namespace comoe::testing {

// The k highest logits of each row, in host memory.
absl::Status RefTopLogits(const kernels::TopLogitsArgs& args, device::Stream& stream);

// The same bits as RefKernels() on the CPU device.
const kernels::KernelTable& FakeCudaKernels();

}  // namespace comoe::testing
