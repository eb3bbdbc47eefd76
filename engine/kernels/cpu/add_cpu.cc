#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/add_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include "engine/base/status_macros.h"
#include "engine/kernels/add.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {

absl::Status AddCpu(const AddArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Add", stream));
  const std::int64_t cols = args.y.cols;
  ForRows(stream, args.y.rows, 12.0 * static_cast<double>(cols) / kBytesPerNs, [&](std::int64_t t) {
    const float* x = args.x.f32(t);
    float* y = args.y.f32(t);
    ForLanes(cols, [&](auto d, std::int64_t i)
                       HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i); });
  });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(AddCpu);
COMOE_KERNEL_FOR_TARGET(AddForTarget, add, AddCpu)

}  // namespace comoe::kernels
#endif
