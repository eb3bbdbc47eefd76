#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/moe_combine_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/moe_combine.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

// Row t of the result. The gate of the shared expert is computed once a row, with the C library's exp.
void CombineRow(const MoeCombineArgs& args, std::int64_t t, std::int64_t terms) {
  const std::int32_t* source = args.source.data() + t * terms;
  const float* weights = args.weights.data() + t * terms;
  const float* shared = args.shared.data == nullptr ? nullptr : args.shared.f32(t);
  const float gate =
      args.shared_gate.data == nullptr ? 1.0F : 1.0F / (1.0F + std::exp(-args.shared_gate.f32(t)[0]));
  float* out = args.out.f32(t);
  ForLanes(args.out.cols, [&](auto d, std::int64_t i) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::int64_t k = 0; k < terms; ++k) {
      sum = hn::MulAdd(hn::Set(d, weights[k]), hn::LoadU(d, args.y.f32(source[k]) + i), sum);
    }
    if (shared != nullptr) {
      sum = hn::MulAdd(hn::Set(d, gate), hn::LoadU(d, shared + i), sum);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, out + i), sum), d, out + i);
  });
}

}  // namespace

absl::Status MoeCombineCpu(const MoeCombineArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("MoeCombine", stream));
  const std::int64_t rows = args.out.rows;
  const std::int64_t terms = rows == 0 ? 0 : static_cast<std::int64_t>(args.source.size()) / rows;
  const double row_bytes = 4.0 * static_cast<double>((terms + 3) * args.out.cols);
  ForRows(stream, rows, row_bytes / kBytesPerNs, [&](std::int64_t t) { CombineRow(args, t, terms); });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(MoeCombineCpu);
COMOE_KERNEL_FOR_TARGET(MoeCombineForTarget, moe_combine, MoeCombineCpu)

}  // namespace comoe::kernels
#endif
