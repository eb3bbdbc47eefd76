#include "engine/base/status_macros.h"
#include "engine/kernels/ref/ref_kernels.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status EmbedRef(const EmbedArgs& args, device::Stream& stream) {
  COMOE_RETURN_IF_ERROR(CheckHostStream("Embed", stream));
  for (std::int64_t t = 0; t < args.out.rows; ++t) {
    float* out = args.out.f32(t);
    for (std::int64_t d = 0; d < args.out.cols; ++d) {
      out[d] = tensor::WeightAt(args.table, args.ids[static_cast<std::size_t>(t)], d);
    }
  }
  return absl::OkStatus();
}

}  // namespace comoe::kernels
