#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status AddRef(const AddArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Add", stream));
  for (std::int64_t t = 0; t < args.y.rows; ++t) {
    for (std::int64_t d = 0; d < args.y.cols; ++d) {
      args.y.f32(t)[d] += args.x.f32(t)[d];
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
