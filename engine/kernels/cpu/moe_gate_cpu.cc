#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/moe_gate_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/moe_gate.h"
#include "engine/kernels/top_k.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

float ExpOf(float x) { return hn::GetLane(hn::Exp(One(), hn::Set(One(), x))); }

// sum_e exp(logits[e] - maximum) in sixteen partial sums, element e in sum e % 16.
float SumOfExp(const float* logits, std::int64_t n, float maximum) {
  F32Vec sums[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    sums[v] = hn::Zero(F32());
  }
  std::int64_t e = 0;
  for (; e + 16 <= n; e += 16) {
    for (int v = 0; v < kVecs; ++v) {
      const F32Vec shifted = hn::Sub(LoadF32(logits + e + v * kLanes), hn::Set(F32(), maximum));
      sums[v] = hn::Add(sums[v], hn::Exp(F32(), shifted));
    }
  }
  float lanes[16];
  for (int v = 0; v < kVecs; ++v) {
    StoreF32(sums[v], lanes + v * kLanes);
  }
  for (int lane = 0; e < n; ++e, ++lane) {
    lanes[lane] += ExpOf(logits[e] - maximum);
  }
  return Sum16(lanes);
}

void GateRow(const float* logits, std::int64_t n, std::int64_t chosen, bool normalize, std::int32_t* experts,
             float* weights) {
  SelectTopK(logits, n, chosen, experts);
  const float maximum = logits[experts[0]];
  const float sum = SumOfExp(logits, n, maximum);
  float kept = 0;
  for (std::int64_t k = 0; k < chosen; ++k) {
    weights[k] = ExpOf(logits[experts[k]] - maximum) / sum;
    kept += weights[k];
  }
  for (std::int64_t k = 0; normalize && k < chosen; ++k) {
    weights[k] /= kept;
  }
}

}  // namespace

absl::Status MoeGateCpu(const MoeGateArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("MoeGate", stream));
  const std::int64_t experts = args.logits.cols;
  const std::int64_t chosen = args.experts_per_row;
  ForRows(stream, args.logits.rows, 3.0 * static_cast<double>(experts), [&](std::int64_t t) {
    GateRow(args.logits.f32(t), experts, chosen, args.normalize, args.experts.data() + t * chosen,
            args.weights.data() + t * chosen);
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(MoeGateCpu);
COMOE_KERNEL_FOR_TARGET(MoeGateForTarget, moe_gate, MoeGateCpu)

}  // namespace comoe::kernels
#endif
