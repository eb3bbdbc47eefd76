#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/expert_ffn_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/cpu/panels-inl.h"
#include "engine/kernels/cpu/panels.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/simd-inl.h"
#include "engine/kernels/cpu/targets.h"
#include "engine/kernels/expert_ffn.h"
#include "engine/kernels/validate.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace comoe::kernels::HWY_NAMESPACE {
namespace {

PanelJob GateUpJob(const ExpertFfnArgs& args, const ExpertRows& work) {
  PanelJob job;
  job.x = args.x.f32();
  job.x_stride = args.x.row_stride;
  job.row_ids = work.rows.data();
  job.num_rows = static_cast<std::int64_t>(work.rows.size());
  job.w = work.expert.gate_up();
  job.num_panels = job.w.layout.panels();
  job.y = args.scratch.f32(work.first_out);
  job.y_stride = args.scratch.row_stride;
  job.swiglu = true;
  return job;
}

PanelJob DownJob(const ExpertFfnArgs& args, const ExpertRows& work) {
  PanelJob job;
  job.x = args.scratch.f32(work.first_out);
  job.x_stride = args.scratch.row_stride;
  job.num_rows = static_cast<std::int64_t>(work.rows.size());
  job.w = work.expert.down();
  job.num_panels = job.w.layout.panels();
  job.y = args.y.f32(work.first_out);
  job.y_stride = args.y.row_stride;
  return job;
}

// One job of every expert, each cut into about `pieces`. An expert with fewer tasks than the largest has some
// that do nothing.
template <class MakeJob>
void RunPhase(const ExpertFfnArgs& args, std::int64_t pieces, const MakeJob& make_job,
              device::Stream& stream) {
  std::int64_t tasks = 0;
  for (const ExpertRows& work : args.experts) {
    tasks = std::max(tasks, PanelGrid(make_job(args, work), pieces).num_tasks());
  }
  ForTasks(stream, tasks * static_cast<std::int64_t>(args.experts.size()), [&](std::int64_t task) {
    const PanelGrid grid(make_job(args, args.experts[static_cast<std::size_t>(task / tasks)]), pieces);
    if (task % tasks < grid.num_tasks()) {
      RunPanels(grid.Task(task % tasks));
    }
  });
}

// Whether threads that take whole experts end about together: the worst case is that the largest comes last.
bool WholeExpertsBalance(std::int64_t experts, std::int64_t threads, double largest_ns, double total_ns) {
  const double share_ns = total_ns / static_cast<double>(threads);
  if (experts % threads == 0 && largest_ns * static_cast<double>(experts / threads) <= 1.05 * share_ns) {
    return true;  // equal ones, as in the decode of one sequence
  }
  return largest_ns <= 0.1 * share_ns;
}

}  // namespace

absl::Status ExpertFfnCpu(const ExpertFfnArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("ExpertFfn", stream));
  double total_ns = 0;
  double largest_ns = 0;
  for (const ExpertRows& work : args.experts) {
    const double ns = EstimateNs(GateUpJob(args, work)) + EstimateNs(DownJob(args, work));
    total_ns += ns;
    largest_ns = std::max(largest_ns, ns);
  }
  const std::int64_t pieces = NumPieces(stream, total_ns);
  const auto tasks = static_cast<std::int64_t>(args.experts.size());
  if (pieces == 1 || WholeExpertsBalance(tasks, NumThreads(stream), largest_ns, total_ns)) {
    // Scratch stays in the cache, and workers meet once.
    const auto run = [&](std::int64_t task) {
      RunPanels(GateUpJob(args, args.experts[static_cast<std::size_t>(task)]));
      RunPanels(DownJob(args, args.experts[static_cast<std::size_t>(task)]));
    };
    if (pieces > 1) {
      ForTasks(stream, tasks, run);
    }
    for (std::int64_t task = 0; pieces == 1 && task < tasks; ++task) {
      run(task);
    }
    return absl::OkStatus();
  }
  const double share = static_cast<double>(pieces) * largest_ns / total_ns;
  const auto cuts = static_cast<std::int64_t>(std::ceil(share));
  RunPhase(args, cuts, GateUpJob, stream);
  RunPhase(args, cuts, DownJob, stream);
  return absl::OkStatus();
}

}  // namespace comoe::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace comoe::kernels {

HWY_EXPORT(ExpertFfnCpu);
COMOE_KERNEL_FOR_TARGET(ExpertFfnForTarget, expert_ffn, ExpertFfnCpu)

}  // namespace comoe::kernels
#endif
