#include "engine/kernels/cpu/panels.h"

#include <algorithm>

#include "engine/kernels/cpu/parallel.h"

namespace comoe::kernels {
namespace {

// A task has whole tiles: 4 panels is the widest, and 24 rows are two of the highest.
constexpr std::int64_t kPanelUnit = 4;
constexpr std::int64_t kRowUnit = 24;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

double EstimateNs(const PanelJob& job) {
  const double bytes = static_cast<double>(job.w.layout.panel_bytes()) * static_cast<double>(job.num_panels);
  const double inputs = static_cast<double>(job.w.layout.k) * static_cast<double>(job.num_panels);
  const double flops = 2.0 * tensor::kPanelOutputs * inputs * static_cast<double>(job.num_rows);
  return std::max(bytes / kBytesPerNs, flops / kFlopsPerNs);
}

PanelGrid::PanelGrid(const PanelJob& job, std::int64_t pieces) : job_(job) {
  const std::int64_t wide =
      std::clamp<std::int64_t>(pieces, 1, std::max<std::int64_t>(1, CeilDiv(job.num_panels, kPanelUnit)));
  const std::int64_t high = std::clamp<std::int64_t>(
      CeilDiv(pieces, wide), 1, std::max<std::int64_t>(1, CeilDiv(job.num_rows, kRowUnit)));
  panel_step_ = wide == 1 ? job.num_panels : CeilDiv(CeilDiv(job.num_panels, wide), kPanelUnit) * kPanelUnit;
  row_step_ = high == 1 ? job.num_rows : CeilDiv(CeilDiv(job.num_rows, high), kRowUnit) * kRowUnit;
  panel_tasks_ = wide == 1 ? 1 : CeilDiv(job.num_panels, panel_step_);
  row_tasks_ = high == 1 ? 1 : CeilDiv(job.num_rows, row_step_);
}

PanelJob PanelGrid::Task(std::int64_t task) const {
  PanelJob job = job_;
  const std::int64_t panel = task / row_tasks_ * panel_step_;
  const std::int64_t row = task % row_tasks_ * row_step_;
  job.first_panel += panel;
  job.num_panels = std::min(panel_step_, job_.num_panels - panel);
  job.num_rows = std::min(row_step_, job_.num_rows - row);
  job.y += row * job.y_stride;
  if (job.row_ids == nullptr) {
    job.x += row * job.x_stride;
  } else {
    job.row_ids += row;
  }
  return job;
}

}  // namespace comoe::kernels
