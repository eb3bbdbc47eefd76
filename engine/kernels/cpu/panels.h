// Activations times a range of a packed matrix's panels: what MatMul and ExpertFfn share.
#pragma once

#include <cstdint>

#include "engine/tensor/packed_matrix.h"

namespace comoe::kernels {

// One piece of work for one thread. Row r of the job is row_ids[r] of x, or r when row_ids is nullptr; its
// result goes to row r of y.
struct PanelJob {
  const float* x = nullptr;  // [*, K], rows x_stride apart
  std::int64_t x_stride = 0;
  const std::int32_t* row_ids = nullptr;  // [num_rows], or nullptr
  std::int64_t num_rows = 0;
  tensor::PackedMatrixView w;
  std::int64_t first_panel = 0;  // even when swiglu
  std::int64_t num_panels = 0;   // even when swiglu
  // Outputs n of w go to y[r, n]; with swiglu, panels 2 i and 2 i + 1 to y[r, 16 i ..].
  float* y = nullptr;
  std::int64_t y_stride = 0;
  bool swiglu = false;
  const float* bias = nullptr;  // [N], or nullptr; not with swiglu
};

// Nanoseconds that one thread spends on the job, roughly: for deciding whether to cut it.
double EstimateNs(const PanelJob& job);

// A job cut into tasks: ranges of panels, and of rows where there are few panels.
class PanelGrid {
 public:
  // About `pieces` tasks; 1 leaves the job whole.
  PanelGrid(const PanelJob& job, std::int64_t pieces);

  std::int64_t num_tasks() const { return panel_tasks_ * row_tasks_; }
  // task in [0, num_tasks()); it may have no rows or panels.
  PanelJob Task(std::int64_t task) const;

 private:
  PanelJob job_;
  std::int64_t panel_step_ = 0;
  std::int64_t row_step_ = 0;
  std::int64_t panel_tasks_ = 0;
  std::int64_t row_tasks_ = 0;
};

}  // namespace comoe::kernels
