#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

float DotRef(const float* x, const tensor::PackedMatrixView& w, std::int64_t n) {
  float even = 0;
  float odd = 0;
  for (std::int64_t k = 0; k < w.layout.k; ++k) {
    float& sum = k % 2 == 0 ? even : odd;
    sum = std::fma(x[k], tensor::WeightAt(w, n, k), sum);
  }
  return even + odd;
}

absl::Status MatMulRef(const MatMulArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("MatMul", stream));
  for (std::int64_t t = 0; t < args.x.rows; ++t) {
    for (std::int64_t n = 0; n < args.w.layout.n; ++n) {
      float sum = DotRef(args.x.f32(t), args.w, n);
      if (!args.bias.empty()) {
        sum += args.bias[static_cast<std::size_t>(n)];
      }
      args.y.f32(t)[n] = sum;
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
