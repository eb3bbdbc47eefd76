#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/clamp_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "engine/base/status_macros.h"
#include "engine/kernels/clamp.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {

absl::Status ClampCpu(const ClampArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Clamp", stream));
  const std::int64_t cols = args.x.cols;
  ForRows(stream, args.x.rows, 8.0 * static_cast<double>(cols) / kBytesPerNs, [&](std::int64_t t) {
    float* x = args.x.f32(t);
    ForLanes(cols, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto limit = hn::Set(d, args.limit);
      const auto value = hn::LoadU(d, x + i);
      // x86's min and max return their second operand for NaN, others do not: choose by comparison.
      const auto high = hn::IfThenElse(hn::Gt(value, limit), limit, value);
      const auto low = hn::Neg(limit);
      hn::StoreU(hn::IfThenElse(hn::Lt(high, low), low, high), d, x + i);
    });
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(ClampCpu);
COMOE_KERNEL_FOR_TARGET(ClampForTarget, clamp, ClampCpu)

}  // namespace comoe::kernels
#endif
