// A router's choice, one warp a row. Bytes: E floats in, 8 K out. Most sizes have a faster kernel:
// moe_gate_rows.cu.
#include "engine/kernels/cuda/cuda_launches.h"
#include "engine/kernels/cuda/moe_gate.cuh"

namespace comoe::kernels {
namespace {

constexpr int kWarps = 8;
constexpr std::int64_t kMaxExperts = 1024;

template <int kPerLane>
__global__ void __launch_bounds__(kWarps* kWarpSize) GateKernel(const CudaGateArgs args) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (t < args.rows) {
    GateRow<kPerLane>(args, t, static_cast<int>(threadIdx.x % kWarpSize));
  }
}

}  // namespace

int LaunchGate(const CudaGateArgs& args, void* stream) {
  if (args.rows <= 0) {
    return 0;
  }
  if (args.num_experts <= 0 || args.num_experts > kMaxExperts || args.experts_per_row <= 0 ||
      args.experts_per_row > args.num_experts ||
      (args.weights == nullptr && args.mapped_weights == nullptr)) {
    return kBadSizes;
  }
  if (GateRowsFit(args)) {
    return LaunchGateRows(args, stream);
  }
  const auto blocks = static_cast<unsigned>(CeilDiv(args.rows, kWarps));
  const auto run = [&](auto* kernel) {
    kernel<<<blocks, kWarps * kWarpSize, 0, AsStream(stream)>>>(args);
    return static_cast<int>(cudaGetLastError());
  };
  const std::int64_t per_lane = CeilDiv(args.num_experts, kWarpSize);
  if (per_lane <= 1) {
    return run(GateKernel<1>);
  }
  if (per_lane <= 2) {
    return run(GateKernel<2>);
  }
  if (per_lane <= 4) {
    return run(GateKernel<4>);
  }
  if (per_lane <= 8) {
    return run(GateKernel<8>);
  }
  if (per_lane <= 16) {
    return run(GateKernel<16>);
  }
  return run(GateKernel<32>);
}

}  // namespace comoe::kernels
