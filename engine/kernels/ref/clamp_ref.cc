#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status ClampRef(const ClampArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Clamp", stream));
  for (std::int64_t t = 0; t < args.x.rows; ++t) {
    for (std::int64_t d = 0; d < args.x.cols; ++d) {
      float& x = args.x.f32(t)[d];
      if (x > args.limit) {
        x = args.limit;
      } else if (x < -args.limit) {
        x = -args.limit;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
