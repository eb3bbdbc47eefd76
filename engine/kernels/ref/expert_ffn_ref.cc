#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

float SiluRef(float x) { return x / (1.0F + std::exp(-x)); }

absl::Status ExpertFfnRef(const ExpertFfnArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("ExpertFfn", stream));
  for (const ExpertRows& work : args.experts) {
    const tensor::PackedMatrixView gate_up = work.expert.gate_up();
    const tensor::PackedMatrixView down = work.expert.down();
    for (std::size_t r = 0; r < work.rows.size(); ++r) {
      const float* x = args.x.f32(work.rows[r]);
      float* hidden = args.scratch.f32(work.first_out + static_cast<std::int64_t>(r));
      float* y = args.y.f32(work.first_out + static_cast<std::int64_t>(r));
      for (std::int64_t f = 0; f < args.scratch.cols; ++f) {
        const std::int64_t gate =
            f / tensor::kPanelOutputs * 2 * tensor::kPanelOutputs + f % tensor::kPanelOutputs;
        hidden[f] = SiluRef(DotRef(x, gate_up, gate)) * DotRef(x, gate_up, gate + tensor::kPanelOutputs);
      }
      for (std::int64_t d = 0; d < args.y.cols; ++d) {
        y[d] = DotRef(hidden, down, d);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
