#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/rope_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/rope.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

void RopeHead(const float* cos, const float* sin, std::int64_t half, float* low) {
  float* high = low + half;
  ForLanes(half, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto c = hn::LoadU(d, cos + i);
    const auto s = hn::LoadU(d, sin + i);
    const auto a = hn::LoadU(d, low + i);
    const auto b = hn::LoadU(d, high + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, low + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, high + i);
  });
}

}  // namespace

absl::Status RopeCpu(const RopeArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Rope", stream));
  const std::int64_t half = args.cos.cols;
  ForRows(stream, args.x.rows, 8.0 * static_cast<double>(args.x.cols) / kBytesPerNs, [&](std::int64_t t) {
    for (std::int64_t h = 0; h < args.heads; ++h) {
      RopeHead(args.cos.f32(t), args.sin.f32(t), half, args.x.f32(t) + h * 2 * half);
    }
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(RopeCpu);
COMOE_KERNEL_FOR_TARGET(RopeForTarget, rope, RopeCpu)

}  // namespace comoe::kernels
#endif
