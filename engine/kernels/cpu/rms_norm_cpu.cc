#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/rms_norm_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/rms_norm.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

// Sixteen partial sums, element i in sum i % 16, so that every target adds in the same order.
float SumOfSquares(const float* x, std::int64_t n) {
  F32Vec sums[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    sums[v] = hn::Zero(F32());
  }
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int v = 0; v < kVecs; ++v) {
      const F32Vec part = LoadF32(x + i + v * kLanes);
      sums[v] = hn::MulAdd(part, part, sums[v]);
    }
  }
  float lanes[16];
  for (int v = 0; v < kVecs; ++v) {
    StoreF32(sums[v], lanes + v * kLanes);
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const auto part = hn::Set(One(), x[i]);
    lanes[lane] = hn::GetLane(hn::MulAdd(part, part, hn::Set(One(), lanes[lane])));
  }
  return Sum16(lanes);
}

void NormGroup(const float* x, const float* weight, std::int64_t n, float epsilon, float* y) {
  const float inverse = 1.0F / std::sqrt(SumOfSquares(x, n) / static_cast<float>(n) + epsilon);
  ForLanes(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto scaled = hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse));
    hn::StoreU(hn::Mul(scaled, hn::LoadU(d, weight + i)), d, y + i);
  });
}

}  // namespace

absl::Status RmsNormCpu(const RmsNormArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("RmsNorm", stream));
  const auto width = static_cast<std::int64_t>(args.weight.size());
  ForRows(stream, args.x.rows, 8.0 * static_cast<double>(args.x.cols) / kBytesPerNs, [&](std::int64_t t) {
    for (std::int64_t g = 0; g < args.groups; ++g) {
      NormGroup(args.x.f32(t) + g * width, args.weight.data(), width, args.epsilon,
                args.y.f32(t) + g * width);
    }
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(RmsNormCpu);
COMOE_KERNEL_FOR_TARGET(RmsNormForTarget, rms_norm, RmsNormCpu)

}  // namespace comoe::kernels
#endif
