#include "engine/kernels/clamp.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status Clamp(const KernelTable& table, const ClampArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "Clamp";
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, args.x.cols));
  if (!(args.limit > 0.0F)) {
    return BadArgument(kOp, absl::StrCat("limit is ", args.limit, ", not above 0"));
  }
  return table.clamp(args, stream);
}

}  // namespace comoe::kernels
