// The CPU kernels, one table for each SIMD target that this processor has. CpuKernels() is the first of them;
// the others are there for tests and for comparisons.
#pragma once

#include "absl/types/span.h"
#include "engine/kernels/kernel_table.h"

namespace comoe::kernels {

// Best first: "cpu/AVX3", "cpu/AVX2", "cpu/SSE4", and a portable one ("cpu/SCALAR" or "cpu/EMU128"). Targets
// with fused multiply-add (AVX3 and AVX2) give the same bits.
absl::Span<const KernelTable> AllCpuKernels();

}  // namespace comoe::kernels
