#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status RmsNormRef(const RmsNormArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("RmsNorm", stream));
  const auto width = static_cast<std::int64_t>(args.weight.size());
  for (std::int64_t t = 0; t < args.x.rows; ++t) {
    for (std::int64_t g = 0; g < args.groups; ++g) {
      const float* x = args.x.f32(t) + g * width;
      float* y = args.y.f32(t) + g * width;
      float squares = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        squares += x[i] * x[i];
      }
      const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(width) + args.epsilon);
      for (std::int64_t i = 0; i < width; ++i) {
        y[i] = x[i] * inverse * args.weight[static_cast<std::size_t>(i)];
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
