#include <algorithm>
#include <cmath>

#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/top_k.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status MoeGateRef(const MoeGateArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("MoeGate", stream));
  const std::int64_t chosen = args.experts_per_row;
  for (std::int64_t t = 0; t < args.logits.rows; ++t) {
    const float* logits = args.logits.f32(t);
    std::int32_t* experts = args.experts.data() + t * chosen;
    float* weights = args.weights.data() + t * chosen;
    SelectTopK(logits, args.logits.cols, chosen, experts);
    const float maximum = logits[experts[0]];
    float sum = 0;
    for (std::int64_t e = 0; e < args.logits.cols; ++e) {
      sum += std::exp(logits[e] - maximum);
    }
    float kept = 0;
    for (std::int64_t k = 0; k < chosen; ++k) {
      weights[k] = std::exp(logits[experts[k]] - maximum) / sum;
      kept += weights[k];
    }
    for (std::int64_t k = 0; args.normalize && k < chosen; ++k) {
      weights[k] /= kept;
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
