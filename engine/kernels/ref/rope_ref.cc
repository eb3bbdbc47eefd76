#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status RopeRef(const RopeArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Rope", stream));
  const std::int64_t half = args.cos.cols;
  for (std::int64_t t = 0; t < args.x.rows; ++t) {
    for (std::int64_t h = 0; h < args.heads; ++h) {
      float* low = args.x.f32(t) + h * 2 * half;
      float* high = low + half;
      for (std::int64_t i = 0; i < half; ++i) {
        const float cos = args.cos.f32(t)[i];
        const float sin = args.sin.f32(t)[i];
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cos - b * sin;
        high[i] = b * cos + a * sin;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
