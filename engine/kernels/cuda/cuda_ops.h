// Operations on a CUDA device with a file of their own: from the arguments of the op headers to launches.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/cuda/cuda_launch.h"
#include "engine/kernels/ops.h"

namespace comoe::kernels {

absl::Status PrepareSequencesCuda(const PrepareSequencesArgs& args, device::Stream& stream);
absl::Status AppendKvCuda(const AppendKvArgs& args, device::Stream& stream);
template <CudaPrecision kPrecision>
absl::Status AttentionCuda(const AttentionArgs& args, device::Stream& stream);

absl::Status MoeGateCuda(const MoeGateArgs& args, device::Stream& stream);
template <CudaPrecision kPrecision>
absl::Status ExpertFfnCuda(const ExpertFfnArgs& args, device::Stream& stream);
absl::Status MoeCombineCuda(const MoeCombineArgs& args, device::Stream& stream);
template <CudaPrecision kPrecision>
absl::Status MoeResidentCuda(const MoeResidentArgs& args, device::Stream& stream);

}  // namespace comoe::kernels
