// CPU kernels that only move and convert elements: one build serves every SIMD target.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/embed.h"
#include "engine/kernels/paged_attention.h"

namespace comoe::kernels {

absl::Status EmbedCpu(const EmbedArgs& args, device::Stream& stream);
absl::Status AppendKvCpu(const AppendKvArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
