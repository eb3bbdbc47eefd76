#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"
#include "engine/kernels/ref/ref_kernels.h"

namespace comoe::kernels {

absl::Status SwiGluRef(const SwiGluArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("SwiGlu", stream));
  for (std::int64_t t = 0; t < args.y.rows; ++t) {
    for (std::int64_t f = 0; f < args.y.cols; ++f) {
      const float* gate = args.gate_up.f32(t) + f / tensor::kPanelOutputs * 2 * tensor::kPanelOutputs +
                          f % tensor::kPanelOutputs;
      args.y.f32(t)[f] = SiluRef(gate[0]) * gate[tensor::kPanelOutputs];
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
