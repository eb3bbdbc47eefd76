#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/swiglu_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/validate.h"
#include "engine/kernels/swiglu.h"
#include "engine/tensor/packed_matrix.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

void SwiGluRow(const float* gate_up, std::int64_t groups, float* y) {
  for (std::int64_t g = 0; g < groups; ++g) {
    for (int v = 0; v < kVecs; ++v) {
      const float* gate = gate_up + g * 32 + v * kLanes;
      StoreF32(hn::Mul(Silu(F32(), LoadF32(gate)), LoadF32(gate + 16)), y + g * 16 + v * kLanes);
    }
  }
}

}  // namespace

absl::Status SwiGluCpu(const SwiGluArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("SwiGlu", stream));
  ForRows(stream, args.y.rows, 12.0 * static_cast<double>(args.y.cols) / kBytesPerNs, [&](std::int64_t t) {
    SwiGluRow(args.gate_up.f32(t), args.y.cols / tensor::kPanelOutputs, args.y.f32(t));
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(SwiGluCpu);
COMOE_KERNEL_FOR_TARGET(SwiGluForTarget, swiglu, SwiGluCpu)

}  // namespace comoe::kernels
#endif
