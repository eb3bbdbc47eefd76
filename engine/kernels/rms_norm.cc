#include "engine/kernels/rms_norm.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/kernels/validate.h"

namespace comoe::kernels {

absl::Status RmsNorm(const KernelTable& table, const RmsNormArgs& args, device::Stream& stream) {
  constexpr absl::string_view kOp = "RmsNorm";
  if (args.groups < 1 || args.weight.empty()) {
    return BadArgument(kOp, absl::StrCat(args.groups, " groups of ", args.weight.size()));
  }
  const std::int64_t cols = args.groups * static_cast<std::int64_t>(args.weight.size());
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "x", args.x, args.x.rows, cols));
  COMOE_RETURN_IF_ERROR(CheckMatrix(kOp, "y", args.y, args.x.rows, cols));
  return table.rms_norm(args, stream);
}

}  // namespace comoe::kernels
