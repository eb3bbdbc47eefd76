#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/matmul_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>

#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/panels-inl.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {

absl::Status MatMulCpu(const MatMulArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("MatMul", stream));
  COMOE_RETURN_IF_ERROR(CheckPanels("MatMul", args.w));
  PanelJob job;
  job.x = args.x.f32();
  job.x_stride = args.x.row_stride;
  job.num_rows = args.x.rows;
  job.w = args.w;
  job.num_panels = args.w.layout.panels();
  job.y = args.y.f32();
  job.y_stride = args.y.row_stride;
  job.bias = args.bias.empty() ? nullptr : args.bias.data();
  const PanelGrid grid(job, NumPieces(stream, EstimateNs(job)));
  ForTasks(stream, grid.num_tasks(), [&](std::int64_t task) { RunPanels(grid.Task(task)); });
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(MatMulCpu);
COMOE_KERNEL_FOR_TARGET(MatMulForTarget, matmul, MatMulCpu)

}  // namespace comoe::kernels
#endif
