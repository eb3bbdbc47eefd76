// The entries of RefKernels(): obvious loops on one thread, the judge of every other backend. They follow the
// contracts in the op headers to the letter, order of sums included, and read weights through WeightAt.
#pragma once

#include "absl/status/status.h"
#include "engine/device/device.h"
#include "engine/kernels/ops.h"

namespace comoe::kernels {

absl::Status EmbedRef(const EmbedArgs& args, device::Stream& stream);
absl::Status RmsNormRef(const RmsNormArgs& args, device::Stream& stream);
absl::Status MatMulRef(const MatMulArgs& args, device::Stream& stream);
absl::Status RopeRef(const RopeArgs& args, device::Stream& stream);
absl::Status AppendKvRef(const AppendKvArgs& args, device::Stream& stream);
absl::Status AttentionRef(const AttentionArgs& args, device::Stream& stream);
absl::Status MoeGateRef(const MoeGateArgs& args, device::Stream& stream);
absl::Status ExpertFfnRef(const ExpertFfnArgs& args, device::Stream& stream);
absl::Status MoeCombineRef(const MoeCombineArgs& args, device::Stream& stream);
absl::Status AddRef(const AddArgs& args, device::Stream& stream);
absl::Status ClampRef(const ClampArgs& args, device::Stream& stream);

// sum_k x[k] w[n, k] in the order of matmul.h.
float DotRef(const float* x, const tensor::PackedMatrixView& w, std::int64_t n);
// x / (1 + exp(-x))
float SiluRef(float x);

}  // namespace comoe::kernels
