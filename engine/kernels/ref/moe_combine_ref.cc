#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status MoeCombineRef(const MoeCombineArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("MoeCombine", stream));
  if (args.out.rows == 0) {
    return absl::OkStatus();
  }
  const auto terms = static_cast<std::int64_t>(args.source.size()) / args.out.rows;
  for (std::int64_t t = 0; t < args.out.rows; ++t) {
    for (std::int64_t d = 0; d < args.out.cols; ++d) {
      float sum = 0;
      for (std::int64_t k = 0; k < terms; ++k) {
        const auto at = static_cast<std::size_t>(t * terms + k);
        sum += args.weights[at] * args.y.f32(args.source[at])[d];
      }
      if (args.shared.data != nullptr) {
        const float gate =
            args.shared_gate.data == nullptr ? 1.0F : 1.0F / (1.0F + std::exp(-args.shared_gate.f32(t)[0]));
        sum += gate * args.shared.f32(t)[d];
      }
      args.out.f32(t)[d] += sum;
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
