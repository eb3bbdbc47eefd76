#include "engine/kernels/cuda/cuda_common.cuh"
#include "engine/kernels/cuda/cuda_launches.h"
#include "engine/kernels/cuda/expert_ffn_parts.h"
#include "engine/kernels/cuda/tiles.h"

namespace comoe::kernels {
namespace {

std::int64_t PanelBytes(CudaDType dtype, std::int64_t k) {
  return (dtype == CudaDType::kBf16 ? (k + 1) / 2 * 2 : k) * 16 * (dtype == CudaDType::kF32 ? 4 : 2);
}

ExpertJob GateUpJob(const CudaExpertFfnArgs& args, std::int64_t few_rows) {
  ExpertJob job;
  job.work = args.work;
  job.num_work = static_cast<int>(args.num_work);
  job.x = args.x;
  job.x_stride = args.x_stride;
  job.grouped = args.grouped;
  job.offset = args.gate_up_offset;
  job.panel_bytes = PanelBytes(args.dtype, args.hidden);
  job.panels = static_cast<int>(CeilDiv(args.intermediate, 16) * 2);
  job.n = job.panels * 8;
  job.k = static_cast<int>(args.hidden);
  job.swiglu = true;
  job.vectors = reinterpret_cast<std::uintptr_t>(args.x) % 8 == 0 && args.x_stride % 2 == 0;
  job.y = args.scratch;
  job.y_stride = args.scratch_stride;
  job.few_rows = static_cast<int>(few_rows);
  return job;
}

ExpertJob DownJob(const CudaExpertFfnArgs& args, std::int64_t few_rows) {
  ExpertJob job = GateUpJob(args, few_rows);
  job.x = args.scratch;
  job.x_stride = args.scratch_stride;
  job.grouped = nullptr;
  job.offset = args.down_offset;
  job.panel_bytes = PanelBytes(args.dtype, args.intermediate);
  job.panels = static_cast<int>(CeilDiv(args.hidden, 16));
  job.n = static_cast<int>(args.hidden);
  job.k = static_cast<int>(args.intermediate);
  job.swiglu = false;
  job.vectors = reinterpret_cast<std::uintptr_t>(args.scratch) % 8 == 0 && args.scratch_stride % 2 == 0;
  job.y = args.y;
  job.y_stride = args.y_stride;
  return job;
}

TileJob TilesOf(const CudaExpertFfnArgs& args, const ExpertJob& job) {
  TileJob tiles;
  tiles.weights = job.swiglu ? TileJob::Weights::kSwigluPanels : TileJob::Weights::kPanels;
  tiles.work = job.work;
  tiles.num_work = job.num_work;
  tiles.few_rows = job.few_rows;
  tiles.max_rows = args.max_rows;
  tiles.total_rows = args.total_rows;
  tiles.offset = job.offset;
  tiles.panel_bytes = job.panel_bytes;
  tiles.panels = job.panels;
  tiles.n = job.n;
  tiles.k = (job.k + 1) / 2 * 2;
  return tiles;
}

int LaunchManyRows(const CudaExpertFfnArgs& args, const ExpertJob& gate_up, const ExpertJob& down,
                   void* stream) {
  const std::size_t input_bytes = CudaTermBytes(args.total_rows, args.hidden, args.precision);
  if (args.workspace == nullptr || !Aligned16(args.workspace) ||
      args.workspace_bytes <
          CudaExpertFfnWorkspaceBytes(args.total_rows, args.hidden, args.intermediate, args.precision)) {
    return kBadSizes;
  }
  const RowTerms x = RowTerms::Make(args.workspace, args.hidden, args.precision);
  const RowTerms hidden =
      RowTerms::Make(static_cast<char*>(args.workspace) + input_bytes, args.intermediate, args.precision);
  // A row is rounded once where there is room for all rows, else once for each expert that has it.
  const bool once = args.x_rows > 0 && args.x_rows <= args.total_rows;
  int error = LaunchRowTerms(args.x, args.x_stride, once ? nullptr : args.grouped,
                             once ? args.x_rows : args.total_rows, args.hidden, x, stream);
  if (error != 0) {
    return error;
  }
  TileJob job = TilesOf(args, gate_up);
  job.x = x;
  job.x_cols = static_cast<int>(x.padded);
  job.grouped = once ? args.grouped : nullptr;
  job.y_terms = hidden;
  error = LaunchTiles(job, stream);
  if (error != 0) {
    return error;
  }
  job = TilesOf(args, down);
  job.x = hidden;
  job.x_cols = gate_up.n;  // what gate_up writes: F padded to whole panels
  job.y = args.y;
  job.y_stride = args.y_stride;
  return LaunchTiles(job, stream);
}

}  // namespace

int LaunchExpertFfn(const CudaExpertFfnArgs& args, void* stream) {
  if (args.num_work <= 0 || args.max_rows <= 0 || args.total_rows <= 0) {
    return 0;
  }
  if (args.hidden <= 0 || args.intermediate <= 0 || args.few_rows < 0 || args.few_rows > kCudaFewRows ||
      args.num_work > 65535 || args.total_rows > INT32_MAX) {
    return kBadSizes;
  }
  const std::int64_t few_rows = args.few_rows == 0 ? kCudaFewRows : args.few_rows;
  const ExpertJob gate_up = GateUpJob(args, few_rows);
  const ExpertJob down = DownJob(args, few_rows);
  if (args.dtype != CudaDType::kBf16) {
    const int error = LaunchExpertPlain(gate_up, args.dtype, stream);
    return error != 0 ? error : LaunchExpertPlain(down, args.dtype, stream);
  }
  if (args.max_rows > few_rows) {
    if (const int error = LaunchManyRows(args, gate_up, down, stream); error != 0) {
      return error;
    }
  }
  const int error = LaunchExpertFew(gate_up, args.precision, stream);
  return error != 0 ? error : LaunchExpertFew(down, args.precision, stream);
}

}  // namespace comoe::kernels
